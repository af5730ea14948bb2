#!/usr/bin/env bash
# Launch of bert-mini with accelerate launch. Written by cputune VERSION: cputune emit
# --format accelerate cputune.json
# Today's launch is as fast as anything that was tried.
# How sure: 95 % interval 0.98–1.02, 10 pairs side by side
# Plan: 1 × 2 threads, fp32.
# Measured on 2026-11-20: 20 samples/s (95 % interval 19.7 to 20.4) on AMD EPYC, 1 socket, 2
# cores, 2 CPUs.
# No plan beat plain `python train.py` beyond noise, so this is that launch, with the threads
# and CPUs that it gets today written down.
# With torch 2.13.0, transformers 5.23.0, accelerate 1.15.0.
# Started as `sh FILE`, it goes on in bash.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail

fail() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 3
}
# The files beside this one, also where it is started through a symbolic link.
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-$0}")")
[[ -f $here/rank.py ]] ||
  fail "rank.py is not beside ${0##*/}" "keep the files that were emitted together in one directory"
python=${PYTHON:-python3}
command -v -- "$python" >/dev/null ||
  fail "there is no $python" "set PYTHON to the interpreter that trains"
"$python" -c 'import importlib.util, sys
sys.exit(importlib.util.find_spec("torch") is None)' ||
  fail "$python has no torch" "set PYTHON to the interpreter that trains"
"$python" -c 'import importlib.util, sys
sys.exit(importlib.util.find_spec("accelerate") is None)' ||
  fail "$python has no accelerate" "pip install accelerate"

# What a shell or another launch has set would change the plan.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR \
  MASTER_PORT "${!PMI_@}" "${!PMIX_@}" "${!OMPI_COMM_@}" "${!MPI_LOCAL@}" "${!HYDI_@}" \
  "${!MV2_COMM_@}" SLURM_PROCID SLURM_LOCALID "${!ACCELERATE_@}" "${!PET_@}" \
  "${!TORCHELASTIC_@}" FORK_LAUNCHED "${!OMP_@}" "${!GOMP_@}" "${!KMP_@}" MKL_NUM_THREADS \
  MKL_DYNAMIC MKL_DOMAIN_NUM_THREADS "${!OPENBLAS_@}" "${!CCL_@}" "${!I_MPI_PIN@}" \
  LD_PRELOAD "${!MALLOC_@}" GLIBC_TUNABLES "${!TCMALLOC_@}"

# What is trained; further arguments of this script are appended.
train=(
  "$here/train.py"
  "$here/recipe.json"
  --output_dir out
  --use_cpu
  --per_device_train_batch_size 8
)

export ACCELERATE_USE_CPU=true
export OMP_NUM_THREADS=2

launch=(
  "$python" -m accelerate.commands.launch
  --config_file "$here/accelerate.yaml"
  --num_cpu_threads_per_process 2
  --mixed_precision no
)

rank=(
  "$here/rank.py"
  --launcher torch
  --cpus 0-1
  --unset KMP_AFFINITY
  --unset KMP_BLOCKTIME
)
"$python" "${rank[@]}" --look
launch+=("${rank[@]}" -- "${train[@]}")

# accelerate and Intel MPI's mpirun leave their ranks behind when they alone are killed: so a
# signal to this script goes to all that it has started.
[[ ! -t 0 ]] || exec </dev/null
set -m
"${launch[@]}" "$@" &
started=$!
for signal in HUP INT QUIT TERM; do
  # shellcheck disable=SC2064 # each trap its own signal
  trap "kill -s $signal -- -$started 2>/dev/null || true" "$signal"
done
while
  status=0
  wait "$started" || status=$?
  kill -0 "$started" 2>/dev/null # a signal to this script only interrupted the waiting
do :; done
# Whatever the launcher has left behind, however it ended.
kill -s TERM -- "-$started" 2>/dev/null || true
exit "$status"
# cputune-plan: {"format":"accelerate","plan":{"nodes":1,"processes_per_node":1,"threads_per_process":2,"ccl_workers":0,"backend":"gloo","precision":"fp32","ipex":false,"allocator":"default","openmp":"default","preload":[],"cpus":[[0,1]],"ccl_cpus":[],"as_found":false,"settings":{}},"environment":{"ACCELERATE_USE_CPU":"true","OMP_NUM_THREADS":"2"},"samples_per_second":{"median":20.0,"low":19.7,"high":20.4},"global_batch_size":8,"sequence_length":128}
