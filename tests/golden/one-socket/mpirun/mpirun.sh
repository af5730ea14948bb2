#!/usr/bin/env bash
# Launch of bert-base-squad with mpirun (Open MPI 5). Written by cputune VERSION: cputune emit
# --format mpirun cputune.json
# 1.57 times as fast as today's launch: an hour of training takes 38 min.
# How sure: 95 % interval 1.51–1.62, 5 pairs side by side
# Plan: 2 × 4 threads, bf16, gloo, tcmalloc.
# Measured on 2026-11-20: 31.4 samples/s (95 % interval 31.1 to 31.8) on Intel(R) Xeon(R)
# w5-3425, 1 socket, 8 cores, 8 CPUs.
# Today's launch ran at 20 samples/s (95 % interval 19.7 to 20.4).
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

# What a shell or another launch has set would change the plan.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR \
  MASTER_PORT "${!PMI_@}" "${!PMIX_@}" "${!OMPI_COMM_@}" "${!MPI_LOCAL@}" "${!HYDI_@}" \
  "${!MV2_COMM_@}" SLURM_PROCID SLURM_LOCALID "${!ACCELERATE_@}" "${!PET_@}" \
  "${!TORCHELASTIC_@}" FORK_LAUNCHED "${!OMP_@}" "${!GOMP_@}" "${!KMP_@}" MKL_NUM_THREADS \
  MKL_DYNAMIC MKL_DOMAIN_NUM_THREADS "${!OPENBLAS_@}" "${!CCL_@}" "${!I_MPI_PIN@}" \
  LD_PRELOAD "${!MALLOC_@}" GLIBC_TUNABLES "${!TCMALLOC_@}"

# An mpirun of pip or conda lies beside the interpreter, whose directory need not be on PATH.
beside=$(dirname -- "$(command -v -- "$python")")
command -v mpirun >/dev/null || [[ ! -x $beside/mpirun ]] || PATH=$PATH:$beside

# Which dialect this mpirun speaks; its name does not say.
mpirun=${MPIRUN:-mpirun}
command -v -- "$mpirun" >/dev/null || fail "there is no $mpirun" "install Open MPI 5, or mend PATH"
version=$("$mpirun" --version 2>&1 || true)
case $version in
  *"Intel(R) MPI"*) dialect=intelmpi ;;
  *HYDRA*) dialect=mpich ;;
  *"(Open MPI) 4."* | *"(OpenRTE) 4."*) dialect=openmpi4 ;;
  *"(Open MPI) "* | *"(OpenRTE) "*) dialect=openmpi5 ;;
  *) dialect=unknown ;;
esac
[[ $dialect == openmpi* ]] ||
  fail "this script is for Open MPI 5, and $mpirun is another: $dialect" \
    "cputune emit --format mpirun --mpi NAME"

# What is trained; further arguments of this script are appended.
train=(
  "$here/train.py"
  "$here/recipe.json"
  --output_dir out
  --use_cpu
  --bf16
  --ddp_backend gloo
  --per_device_train_batch_size 6
)
for word in "$@"; do
  [[ $word != : ]] ||
    fail "a lone colon would start another program here" "write the argument otherwise"
done

free_port() {
  "$python" -c 'import socket
with socket.socket() as s:
    s.bind(("", 0))
    print(s.getsockname()[1])'
}
port=$(free_port)

launch=(
  "$mpirun"
  -n 2
  --host localhost:2
  --map-by ppr:2:node
  --bind-to none
  -x MASTER_ADDR=127.0.0.1
  -x ACCELERATE_USE_CPU=true
  -x OMP_NUM_THREADS=4
  -x ACCELERATE_MIXED_PRECISION=bf16
  -x LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4
  -x MASTER_PORT="$port"
)
[[ $EUID -ne 0 ]] || launch+=(--allow-run-as-root)

rank=(
  "$here/rank.py"
  --launcher mpi
  --cpus 0-3/4-7
)
"$python" "${rank[@]}" --look
exec "${launch[@]}" "$python" "${rank[@]}" -- "${train[@]}" "$@"
# cputune-plan: {"format":"mpirun","plan":{"nodes":1,"processes_per_node":2,"threads_per_process":4,"ccl_workers":0,"backend":"gloo","precision":"bf16","ipex":false,"allocator":"tcmalloc","openmp":"default","preload":["/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"],"cpus":[[0,1,2,3],[4,5,6,7]],"ccl_cpus":[],"as_found":false,"settings":{}},"environment":{"ACCELERATE_USE_CPU":"true","OMP_NUM_THREADS":"4","ACCELERATE_MIXED_PRECISION":"bf16","LD_PRELOAD":"/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"},"samples_per_second":{"median":31.4,"low":31.1,"high":31.8},"global_batch_size":12,"sequence_length":384}
