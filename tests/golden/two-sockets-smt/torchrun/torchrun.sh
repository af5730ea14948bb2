#!/usr/bin/env bash
# Launch of bert-large-squad with torchrun. Written by cputune VERSION.
# Measured for bert-large-squad on Intel(R) Xeon(R) 8480+, 2 sockets, 56 cores, 112 CPUs, on
# 2026-11-20; not measured on 2 nodes.
# Plan: 2 nodes, each 2 ranks with 24 threads, bf16, ccl, 4 workers, jemalloc, libiomp5, IPEX.
# Extrapolated: 2 nodes, 4 ranks with 3 samples each, 12 together. Measured: 1 node, 2 ranks
# with 6 samples each, 12 together, nothing on 2 nodes.
# cputune-plan: torchrun, plan.json (self-contained: needs no cputune)
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # if it was started as sh FILE
set -euo pipefail
fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 3; }
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-$0}")")
for file in rank.py train.py recipe.json; do
  [[ -f $here/$file ]] || fail "$file is not beside ${0##*/}" "copy it here"; done
python=${PYTHON:-python3}
node_rank=${NODE_RANK:-}
# oneCCL and the Intel MPI that it comes with (https://github.com/intel/torch-ccl).
setvars=$("$python" -c 'import importlib.util as found
print(found.find_spec("oneccl_bindings_for_pytorch").submodule_search_locations[0] + "/env/setvars.sh")' 2>/dev/null || true)
[[ -f $setvars ]] ||
  fail "oneccl_bindings_for_pytorch has no env/setvars.sh here" "install the one that fits torch"
set +eu
# shellcheck disable=SC1090
source "$setvars"
set -eu
[[ $(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT taskset -c 4-27,32-55 nproc 2>/dev/null) == 48 ]] ||
  fail "$HOSTNAME: "'CPUs 4-27,32-55 are not all on this machine' 'tune where it runs'
train=("$here/train.py" "$here/recipe.json" --output_dir out --use_cpu --bf16
  --ddp_backend ccl --use_ipex --per_device_train_batch_size 3)

# Start this on every node, from a folder that all of them see (pdsh begins in $HOME):
#   pdsh -w node1,node2 "cd '$PWD' && bash launch/torchrun.sh"
# Each finds which of them it is. If names and addresses do not tell, set NODE_RANK (0 on the first).
node_rank=${node_rank:-$("$python" -c 'import os, socket, sys
def is_here(host):
    if host in (os.environ.get("SLURMD_NODENAME"), socket.gethostname()):
        return True
    for family, kind, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM):
        try:
            return socket.socket(family, kind).bind(address) is None
        except OSError:
            continue
print(*[at for at, host in enumerate(sys.argv[1:]) if is_here(host)])' node1 node2 2>/dev/null)}
[[ $node_rank =~ ^[0-9]+$ && $node_rank -lt 2 ]] ||
  fail "$HOSTNAME is not one alone of node1,node2" "NODE_RANK=0 on the first, 1 on the next"
# All nodes must agree on the port, so it cannot be picked free here.
port=${PORT:-29500}
((node_rank > 0)) || "$python" -c 'import socket, sys
socket.create_server(("", int(sys.argv[1])))' "$port" 2>/dev/null ||
  fail "port $port is not free here" "set PORT to another one, on every node"
rank=("$here/rank.py" --launcher torch --cpus 4-27/32-55)
export ACCELERATE_USE_CPU=true OMP_NUM_THREADS=24 ACCELERATE_MIXED_PRECISION=bf16 \
  CCL_WORKER_COUNT=4 CCL_WORKER_AFFINITY='0,1,2,3,28,29,30,31' \
  MALLOC_CONF='dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0' KMP_BLOCKTIME=1 \
  ACCELERATE_USE_IPEX=true \
  LD_PRELOAD=/opt/conda/lib/libjemalloc.so.2:/opt/conda/lib/libiomp5.so \
  GLOO_SOCKET_IFNAME=eth0 FI_TCP_IFACE=eth0 CCL_KVS_IFACE=eth0 CCL_PROCESS_LAUNCHER=none \
  CCL_ATL_TRANSPORT=ofi
exec "$python" -m torch.distributed.run --nnodes 2 --node-rank "$node_rank" \
  --nproc-per-node 2 --master-addr node1 --master-port "$port" "${rank[@]}" -- "${train[@]}" \
  "$@"
