#!/usr/bin/env bash
# Launch of bert-large-squad with sbatch. Written by cputune VERSION: cputune emit --format
# slurm cputune.json
# Measured for bert-large-squad on Intel(R) Xeon(R) 8480+, 2 sockets, 56 cores, 112 CPUs, on
# 2026-11-20; not measured on 2 nodes.
# Plan: 2 nodes, 2 × 24 threads, bf16, ccl, 4 workers, jemalloc, libiomp5, IPEX.
# With torch 2.8.0, transformers 4.56.2, accelerate 1.7.0, intel_extension_for_pytorch 2.8.0,
# oneccl_bind_pt 2.8.0+cpu.
# Measured: 1 node, 2 ranks with 6 samples each, 12 together.
# Extrapolated: 2 nodes, 4 ranks with 3 samples each, 12 together. Nothing was measured on 2
# nodes: neither speed, nor memory, nor the network between them.
#SBATCH --job-name=bert-large --output=%x-%j.out --time=2-00:00:00
#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=28 --hint=nomultithread --exclusive
#SBATCH --partition=cpu
#SBATCH --account=nlp
# Started as `sh FILE`, it goes on in bash.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 3; }

# Slurm runs a copy of this script: what belongs to it lies where it was submitted.
submitted=$(scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n 's/^ *Command=//p' || true)
while [[ $submitted == *" "* && ! -f $submitted ]]; do submitted=${submitted% *}; done
beside=$(dirname -- "$(readlink -f -- "${submitted:-.}" || echo .)")
for here in "${LAUNCH_DIR:-}" "$beside" "${SLURM_SUBMIT_DIR:-.}" "${SLURM_SUBMIT_DIR:-.}/launch"; do
  [[ ! -f $here/rank.py ]] || break
done
for file in rank.py train.py recipe.json; do
  [[ -f $here/$file ]] || fail "$file is not beside ${0##*/}" "LAUNCH_DIR=DIR sbatch slurm.sh"; done
python=${PYTHON:-python3}
# What a shell or another launch has set would change the plan.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR \
  MASTER_PORT "${!PMI_@}" "${!PMIX_@}" "${!OMPI_COMM_@}" "${!MPI_LOCAL@}" "${!HYDI_@}" \
  "${!MV2_COMM_@}" SLURM_PROCID SLURM_LOCALID "${!ACCELERATE_@}" "${!PET_@}" \
  "${!TORCHELASTIC_@}" FORK_LAUNCHED "${!OMP_@}" "${!GOMP_@}" "${!KMP_@}" MKL_NUM_THREADS \
  MKL_DYNAMIC MKL_DOMAIN_NUM_THREADS "${!OPENBLAS_@}" "${!CCL_@}" "${!I_MPI_PIN@}" \
  LD_PRELOAD "${!MALLOC_@}" GLIBC_TUNABLES "${!TCMALLOC_@}"
# oneCCL and the Intel MPI that it comes with (https://github.com/intel/torch-ccl).
setvars=$("$python" -c 'import importlib.util as found
print(found.find_spec("oneccl_bindings_for_pytorch").submodule_search_locations[0] + "/env/setvars.sh")' 2>/dev/null || true)
[[ -f $setvars ]] ||
  fail "oneccl_bindings_for_pytorch has no env/setvars.sh here" "install the one that fits torch"
set +eu
# shellcheck disable=SC1090
source "$setvars"
set -eu
for word in "$@"; do
  [[ $word != : ]] || fail "a lone colon would start another program here" "write it otherwise"
done
train=("$here/train.py" "$here/recipe.json" --output_dir out --use_cpu --bf16
  --ddp_backend ccl --use_ipex --per_device_train_batch_size 3)
port=$("$python" -c 'import socket; print(socket.create_server(("", 0)).getsockname()[1])')
rank=("$here/rank.py" --launcher slurm --cpus 4-27/32-55 --bind offered)
export ACCELERATE_USE_CPU=true OMP_NUM_THREADS=24 ACCELERATE_MIXED_PRECISION=bf16 \
  CCL_WORKER_COUNT=4 CCL_WORKER_AFFINITY='0,1,2,3,28,29,30,31' \
  MALLOC_CONF='dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0' KMP_BLOCKTIME=1 \
  ACCELERATE_USE_IPEX=true \
  LD_PRELOAD=/opt/conda/lib/libjemalloc.so.2:/opt/conda/lib/libiomp5.so \
  GLOO_SOCKET_IFNAME=eth0 FI_TCP_IFACE=eth0 CCL_KVS_IFACE=eth0 CCL_PROCESS_LAUNCHER=none \
  CCL_ATL_TRANSPORT=ofi

# The step takes all CPUs of the job, and shares them with steps that only wait; rank.py binds.
unset SLURM_EXACT SLURM_EXCLUSIVE "${!SLURM_CPU_BIND@}"
cpus=$(tr , '\n' <<<"${SLURM_JOB_CPUS_PER_NODE:-0}" | sed 's/(.*//' | sort -n | head -n 1)
each=$((cpus / 4 > 28 ? cpus / 4 : 28))
nodes=${LAUNCH_NODES:-$SLURM_JOB_NODELIST} # those of the allocation that take part
MASTER_ADDR=$(scontrol show hostnames "$nodes" | head -n 1)
export SLURM_OVERLAP=1 SRUN_CPUS_PER_TASK=$each MASTER_ADDR MASTER_PORT=$port
exec srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task "$each" \
  --cpu-bind=cores --distribution=block:block --export=ALL --kill-on-bad-exit=1 \
  ${LAUNCH_NODES:+--nodelist="$LAUNCH_NODES"} "$python" "${rank[@]}" -- "${train[@]}" "$@"
# cputune-plan: {"format":"slurm","plan":{"nodes":2,"processes_per_node":2,"threads_per_process":24,"ccl_workers":4,"backend":"ccl","precision":"bf16","ipex":true,"allocator":"jemalloc","openmp":"libiomp5","preload":["/opt/conda/lib/libjemalloc.so.2","/opt/conda/lib/libiomp5.so"],"cpus":[[4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27],[32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55]],"ccl_cpus":[[0,1,2,3],[28,29,30,31]],"as_found":false,"settings":{}},"environment":{"ACCELERATE_USE_CPU":"true","OMP_NUM_THREADS":"24","ACCELERATE_MIXED_PRECISION":"bf16","CCL_WORKER_COUNT":"4","CCL_WORKER_AFFINITY":"0,1,2,3,28,29,30,31","MALLOC_CONF":"dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0","KMP_BLOCKTIME":"1","ACCELERATE_USE_IPEX":"true","LD_PRELOAD":"/opt/conda/lib/libjemalloc.so.2:/opt/conda/lib/libiomp5.so"},"hosts":["node1","node2"],"global_batch_size":12,"sequence_length":384,"trained":{"words":["$here/train.py","$here/recipe.json","--output_dir","out","--use_cpu","--bf16","--ddp_backend","ccl","--use_ipex","--per_device_train_batch_size","3"],"files":{"$here/train.py":"fd7f2ba81c90bf95","$here/recipe.json":"00796e632272bf13"},"model":null,"data":null}}
