#!/usr/bin/env bash
# Launch of bert-mini with mpirun (whichever MPI is found). Written by cputune VERSION.
#
# Today's launch is as fast as anything that was tried.
# Do now: nothing: keep the launch that you have
# How sure: 95 % interval 0.98–1.02, 10 pairs side by side
# Plan: 1 × 2 threads, fp32.
# Measured on 2026-11-20: 20 samples/s (95 % interval 19.7 to 20.4) on AMD EPYC, 1 socket, 2
# cores, 2 CPUs.
# No plan beat plain `python train.py` beyond noise, so this is that launch, with the threads
# and CPUs that it gets today written down.
# With torch 2.13.0, transformers 5.23.0, accelerate 1.15.0.
# Data: synthetic tokens.
# cputune-plan: {"format":"mpirun","plan":{"nodes":1,"processes_per_node":1,"threads_per_process":2,"ccl_workers":0,"backend":"gloo","precision":"fp32","ipex":false,"allocator":"default","openmp":"default","preload":[],"cpus":[[0,1]],"ccl_cpus":[],"as_found":false,"settings":{}},"environment":{"ACCELERATE_USE_CPU":"true","OMP_NUM_THREADS":"2"},"samples_per_second":{"median":20.0,"low":19.7,"high":20.4},"global_batch_size":8,"sequence_length":128}
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

# An outer environment must not change the plan: trials were run without these too.
# The numbers of another launch; torch believes them before those of MPI.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR \
  MASTER_PORT
# The numbers that an MPI or Slurm gave to this very process.
unset "${!PMI_@}" "${!PMIX_@}" "${!OMPI_COMM_@}" "${!MPI_LOCAL@}" "${!HYDI_@}" \
  "${!MV2_COMM_@}" SLURM_PROCID SLURM_LOCALID
# Options of accelerate and torchrun.
unset "${!ACCELERATE_@}" "${!PET_@}" "${!TORCHELASTIC_@}" FORK_LAUNCHED
# Threads and their places.
unset "${!OMP_@}" "${!GOMP_@}" "${!KMP_@}" MKL_NUM_THREADS MKL_DYNAMIC \
  MKL_DOMAIN_NUM_THREADS "${!OPENBLAS_@}"
# Workers of oneCCL, pinning of Intel MPI.
unset "${!CCL_@}" "${!I_MPI_PIN@}"
# Another malloc or OpenMP.
unset LD_PRELOAD "${!MALLOC_@}" GLIBC_TUNABLES "${!TCMALLOC_@}"

# An mpirun of pip or conda lies beside the interpreter, whose directory need not be on PATH.
beside=$(dirname -- "$(command -v -- "$python")")
command -v mpirun >/dev/null || [[ ! -x $beside/mpirun ]] || PATH=$PATH:$beside

# Which dialect this mpirun speaks; its name does not say.
mpirun=${MPIRUN:-mpirun}
command -v -- "$mpirun" >/dev/null || fail "there is no $mpirun" "install an MPI, or mend PATH"
version=$("$mpirun" --version 2>&1 || true)
case $version in
  *"Intel(R) MPI"*) dialect=intelmpi ;;
  *HYDRA*) dialect=mpich ;;
  *"(Open MPI) 4."* | *"(OpenRTE) 4."*) dialect=openmpi4 ;;
  *"(Open MPI) "* | *"(OpenRTE) "*) dialect=openmpi5 ;;
  *) dialect=unknown ;;
esac

# What is trained; further arguments of this script are appended.
train=(
  "$here/train.py"
  "$here/recipe.json"
  --output_dir out
  --use_cpu
  --per_device_train_batch_size 8
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

case $dialect in
  intelmpi)
    launch=(
      "$mpirun"
      -n 1
      -ppn 1
      -launcher fork
      -genv I_MPI_PIN_DOMAIN '[0x3]'
      -genv MASTER_ADDR 127.0.0.1
      -genv ACCELERATE_USE_CPU true
      -genv OMP_NUM_THREADS 2
      -genv MASTER_PORT "$port"
    )
    ;;
  mpich)
    launch=(
      "$mpirun"
      -n 1
      -ppn 1
      -launcher fork
      -bind-to user:0+1
      -genv MASTER_ADDR 127.0.0.1
      -genv ACCELERATE_USE_CPU true
      -genv OMP_NUM_THREADS 2
      -genv MASTER_PORT "$port"
    )
    ;;
  openmpi*)
    launch=(
      "$mpirun"
      -n 1
      --host localhost:1
      --map-by ppr:1:node
      --bind-to none
      -x MASTER_ADDR=127.0.0.1
      -x ACCELERATE_USE_CPU=true
      -x OMP_NUM_THREADS=2
      -x MASTER_PORT="$port"
    )
    [[ $EUID -ne 0 ]] || launch+=(--allow-run-as-root)
    ;;
  *) fail "$mpirun is no MPI that is known here" "install Intel MPI, MPICH or Open MPI" ;;
esac

rank=(
  "$here/rank.py"
  --launcher mpi
  --cpus 0-1
)
"$python" "${rank[@]}" --look
launch+=("$python" "${rank[@]}" -- "${train[@]}")

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
