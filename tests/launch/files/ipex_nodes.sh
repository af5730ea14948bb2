ipex launch --nnodes 2 --hostfile hosts --nprocs-per-node 2 --ccl-worker-count 2 train.py --a 1
python -m intel_extension_for_pytorch.cpu.launch --distributed --nproc_per_node 2 --memory-allocator jemalloc train.py --b
ipexrun --extra-mpi-params="-print-rank-map" --nnodes 2 --hostfile hosts train.py --c
