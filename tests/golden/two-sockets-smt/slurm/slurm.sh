#!/usr/bin/env bash
# Launch of bert-large-squad with sbatch. Written by cputune VERSION.
# Measured for bert-large-squad on Intel(R) Xeon(R) 8480+, 2 sockets, 56 cores, 112 CPUs, on
# 2026-11-20; not measured on 2 nodes.
# Plan: 2 nodes, each 2 ranks with 24 threads, bf16, ccl, 4 workers, jemalloc, libiomp5, IPEX.
# Extrapolated: 2 nodes, 4 ranks with 3 samples each, 12 together. Measured: 1 node, 2 ranks
# with 6 samples each, 12 together, nothing on 2 nodes.
# cputune-plan: slurm, plan.json (self-contained: needs no cputune)
#SBATCH --job-name=bert-large --output=%x-%j.out --time=2-00:00:00
#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=28 --hint=nomultithread --exclusive
#SBATCH --partition=cpu
#SBATCH --account=nlp
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # if it was started as sh FILE
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
# oneCCL and the Intel MPI that it comes with (https://github.com/intel/torch-ccl).
setvars=$("$python" -c 'import importlib.util as found
print(found.find_spec("oneccl_bindings_for_pytorch").submodule_search_locations[0] + "/env/setvars.sh")' 2>/dev/null || true)
[[ -f $setvars ]] ||
  fail "oneccl_bindings_for_pytorch has no env/setvars.sh here" "install the one that fits torch"
set +eu
# shellcheck disable=SC1090
source "$setvars"
set -eu
for word; do [[ $word != : ]] || fail "':' alone separates two programs for mpirun" "leave it out"; done
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
