#!/usr/bin/env bash
# Launch of bert-mini. Written by cputune VERSION: cputune emit --format mpirun cputune.json
# Your current launch is as fast as the best other plan, within 5%.
# How sure: 95 % interval 0.98–1.02, 10 pairs side by side
# Plan: 1 × 2 threads, fp32.
# Measured for bert-mini on AMD EPYC, 1 socket, 2 cores, 2 CPUs, on 2026-11-20: 20 samples/s
# (95 % interval 19.7 to 20.4).
# No plan beat plain `python train.py` beyond noise, so this is that launch, with the threads
# and CPUs that it gets today written down.
# With torch 2.13.0, transformers 5.23.0, accelerate 1.15.0.
# Note: the plan has one rank, which needs no mpirun: the script starts python itself
# Started as `sh FILE`, it goes on in bash.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 3; }
python=${PYTHON:-python3}
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-$0}")")
for file in train.py recipe.json; do
  [[ -f $here/$file ]] || fail "$file is not beside ${0##*/}" "copy it here"; done
# What a shell or another launch has set would change the plan.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR \
  MASTER_PORT "${!PMI_@}" "${!PMIX_@}" "${!OMPI_COMM_@}" "${!MPI_LOCAL@}" "${!HYDI_@}" \
  "${!MV2_COMM_@}" SLURM_PROCID SLURM_LOCALID "${!ACCELERATE_@}" "${!PET_@}" \
  "${!TORCHELASTIC_@}" FORK_LAUNCHED "${!OMP_@}" "${!GOMP_@}" "${!KMP_@}" MKL_NUM_THREADS \
  MKL_DYNAMIC MKL_DOMAIN_NUM_THREADS "${!OPENBLAS_@}" "${!CCL_@}" "${!I_MPI_PIN@}" \
  LD_PRELOAD "${!MALLOC_@}" GLIBC_TUNABLES "${!TCMALLOC_@}"
[[ $(taskset -c 0-1 nproc 2>/dev/null) == 2 ]] ||
  fail 'CPUs 0-1 are not all here' 'tune where it runs'
export ACCELERATE_USE_CPU=true OMP_NUM_THREADS=2
exec taskset -c 0-1 "$python" "$here/train.py" "$here/recipe.json" --output_dir out \
  --use_cpu --per_device_train_batch_size 8 "$@"
# cputune-plan: {"format":"mpirun","plan":{"nodes":1,"processes_per_node":1,"threads_per_process":2,"ccl_workers":0,"backend":"gloo","precision":"fp32","ipex":false,"allocator":"default","openmp":"default","preload":[],"cpus":[[0,1]],"ccl_cpus":[],"as_found":false,"settings":{}},"environment":{"ACCELERATE_USE_CPU":"true","OMP_NUM_THREADS":"2"},"samples_per_second":{"centre":20.0,"low":19.7,"high":20.4},"global_batch_size":8,"sequence_length":128,"trained":{"words":["$here/train.py","$here/recipe.json","--output_dir","out","--use_cpu","--per_device_train_batch_size","8"],"files":{"$here/train.py":"fd7f2ba81c90bf95","$here/recipe.json":"f8061ed020c873c2"},"model":null,"data":null}}
