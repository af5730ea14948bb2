#!/usr/bin/env bash
# Launch of bert-large-squad with mpirun (Intel MPI). Written by cputune VERSION.
# Measured for bert-large-squad on Intel(R) Xeon(R) 8480+, 2 sockets, 56 cores, 112 CPUs, on
# 2026-11-20; not measured on 2 nodes.
# Plan: 2 nodes, each 2 ranks with 24 threads, bf16, ccl, 4 workers, jemalloc, libiomp5, IPEX.
# Extrapolated: 2 nodes, 4 ranks with 3 samples each, 12 together. Measured: 1 node, 2 ranks
# with 6 samples each, 12 together, nothing on 2 nodes.
# cputune-plan: mpirun, plan.json (self-contained: needs no cputune)
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # if it was started as sh FILE
set -euo pipefail
fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 3; }
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-$0}")")
for file in rank.py train.py recipe.json hosts.hydra; do
  [[ -f $here/$file ]] || fail "$file is not beside ${0##*/}" "copy it here"; done
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
export I_MPI_PIN=off # rank.py binds
rank=(env ACCELERATE_USE_CPU=true OMP_NUM_THREADS=24 ACCELERATE_MIXED_PRECISION=bf16
  CCL_WORKER_COUNT=4 CCL_WORKER_AFFINITY='0,1,2,3,28,29,30,31'
  MALLOC_CONF='dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0' KMP_BLOCKTIME=1
  ACCELERATE_USE_IPEX=true
  LD_PRELOAD=/opt/conda/lib/libjemalloc.so.2:/opt/conda/lib/libiomp5.so
  GLOO_SOCKET_IFNAME=eth0 FI_TCP_IFACE=eth0 CCL_KVS_IFACE=eth0 MASTER_ADDR=node1
  MASTER_PORT="$port" "$python" "$here/rank.py" --launcher mpi --cpus 4-27/32-55)
command -v mpirun >/dev/null || PATH=$PATH:$(dirname -- "$(command -v -- "$python")") # of pip
mpirun=${MPIRUN:-mpirun}
case $("$mpirun" --version 2>&1 || true) in
  *"Intel(R) MPI"*) launch=("$mpirun" -n 4 -ppn 2 -f "$here/hosts.hydra" -iface eth0) ;;
  *) fail "mpirun is not Intel MPI" "install it, or cputune emit --mpi NAME" ;;
esac
launch+=("${rank[@]}" -- "${train[@]}")
# accelerate and Intel MPI leave ranks behind if they alone are killed: a signal goes to all.
set -m; [[ ! -t 0 ]] || exec </dev/null
"${launch[@]}" "$@" &
pass() { kill -s "$1" -- "-$!" 2>/dev/null || true; }
trap 'pass HUP' HUP; trap 'pass INT' INT; trap 'pass QUIT' QUIT; trap 'pass TERM' TERM
while status=0; wait "$!" || status=$?; kill -0 "$!" 2>/dev/null; do :; done
pass TERM; exit "$status"
