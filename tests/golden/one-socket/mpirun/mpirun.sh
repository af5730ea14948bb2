#!/usr/bin/env bash
# Launch of bert-base-squad with mpirun (Open MPI 5). Written by cputune VERSION: cputune emit
# --format mpirun cputune.json
# 1.57 times as fast as your current launch: an hour of training takes 38 min.
# How sure: 95 % interval 1.51–1.62, 5 pairs side by side
# Plan: 2 × 4 threads, bf16, gloo, tcmalloc.
# Measured for bert-base-squad on Intel(R) Xeon(R) w5-3425, 1 socket, 8 cores, 8 CPUs, on
# 2026-11-20: 31.4 samples/s (95 % interval 31.1 to 31.8).
# With torch 2.13.0, transformers 5.23.0, accelerate 1.15.0.
# Started as `sh FILE`, it goes on in bash.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 3; }
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-$0}")")
for file in rank.py train.py recipe.json; do
  [[ -f $here/$file ]] || fail "$file is not beside ${0##*/}" "copy it here"; done
python=${PYTHON:-python3}
# What a shell or another launch has set would change the plan.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR \
  MASTER_PORT "${!PMI_@}" "${!PMIX_@}" "${!OMPI_COMM_@}" "${!MPI_LOCAL@}" "${!HYDI_@}" \
  "${!MV2_COMM_@}" SLURM_PROCID SLURM_LOCALID "${!ACCELERATE_@}" "${!PET_@}" \
  "${!TORCHELASTIC_@}" FORK_LAUNCHED "${!OMP_@}" "${!GOMP_@}" "${!KMP_@}" MKL_NUM_THREADS \
  MKL_DYNAMIC MKL_DOMAIN_NUM_THREADS "${!OPENBLAS_@}" "${!CCL_@}" "${!I_MPI_PIN@}" \
  LD_PRELOAD "${!MALLOC_@}" GLIBC_TUNABLES "${!TCMALLOC_@}"
[[ $(taskset -c 0-7 nproc 2>/dev/null) == 8 ]] ||
  fail 'CPUs 0-7 are not all here' 'tune where it runs'
for word in "$@"; do
  [[ $word != : ]] || fail "a lone colon would start another program here" "write it otherwise"
done
train=("$here/train.py" "$here/recipe.json" --output_dir out --use_cpu --bf16
  --ddp_backend gloo --per_device_train_batch_size 6)
port=$("$python" -c 'import socket; print(socket.create_server(("", 0)).getsockname()[1])')
rank=(env ACCELERATE_USE_CPU=true OMP_NUM_THREADS=4 ACCELERATE_MIXED_PRECISION=bf16
  LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4 MASTER_ADDR=127.0.0.1
  MASTER_PORT="$port" "$python" "$here/rank.py" --launcher mpi --cpus 0-3/4-7)
# An mpirun of pip or conda lies beside the interpreter, whose directory need not be on PATH.
command -v mpirun >/dev/null || PATH=$PATH:$(dirname -- "$(command -v -- "$python")")
mpirun=${MPIRUN:-mpirun}
case $("$mpirun" --version 2>&1 || true) in
  *"(Open MPI) "* | *"(OpenRTE) "*) launch=("$mpirun" -n 2 --host localhost:2 --map-by ppr:2:node --bind-to none)
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ;;
  *) fail "${mpirun##*/} is not Open MPI 5" "install it, mend PATH, or cputune emit --mpi NAME" ;;
esac
launch+=("${rank[@]}" -- "${train[@]}")
exec "${launch[@]}" "$@"
# cputune-plan: {"format":"mpirun","plan":{"nodes":1,"processes_per_node":2,"threads_per_process":4,"ccl_workers":0,"backend":"gloo","precision":"bf16","ipex":false,"allocator":"tcmalloc","openmp":"default","preload":["/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"],"cpus":[[0,1,2,3],[4,5,6,7]],"ccl_cpus":[],"as_found":false,"settings":{}},"environment":{"ACCELERATE_USE_CPU":"true","OMP_NUM_THREADS":"4","ACCELERATE_MIXED_PRECISION":"bf16","LD_PRELOAD":"/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"},"samples_per_second":{"centre":31.4,"low":31.1,"high":31.8},"global_batch_size":12,"sequence_length":384,"trained":{"words":["$here/train.py","$here/recipe.json","--output_dir","out","--use_cpu","--bf16","--ddp_backend","gloo","--per_device_train_batch_size","6"],"files":{"$here/train.py":"fd7f2ba81c90bf95","$here/recipe.json":"5a829ddf99cf2113"},"model":null,"data":null}}
