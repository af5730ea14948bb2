torchrun --nnodes=2 --nproc_per_node=2 --node_rank=0 --master_addr=10.0.0.1 --master_port=29500 \
  train.py --do_train --use_cpu --output_dir out --ddp_backend nccl --tf32 True
