#!/usr/bin/env bash
# Launch of bert-large-squad with torchrun. Written by cputune VERSION: cputune emit --format
# torchrun cputune.json
# Measured for bert-large-squad on Intel(R) Xeon(R) 8480+, 2 sockets, 56 cores, 112 CPUs, on
# 2026-11-20; not measured on 2 nodes.
# Plan: 2 nodes, 2 × 24 threads, bf16, ccl, 4 workers, jemalloc, libiomp5, IPEX.
# With torch 2.8.0, transformers 4.56.2, accelerate 1.7.0, intel_extension_for_pytorch 2.8.0,
# oneccl_bind_pt 2.8.0+cpu.
# Measured: 1 node, 2 ranks with 6 samples each, 12 together.
# Extrapolated: 2 nodes, 4 ranks with 3 samples each, 12 together. Nothing was measured on 2
# nodes: neither speed, nor memory, nor the network between them.
# Started as `sh FILE`, it goes on in bash.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 3; }
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-$0}")")
for file in rank.py train.py recipe.json; do
  [[ -f $here/$file ]] || fail "$file is not beside ${0##*/}" "copy it here"; done
python=${PYTHON:-python3}
node_rank=${NODE_RANK:-}
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
[[ $(taskset -c 4-27,32-55 nproc 2>/dev/null) == 48 ]] ||
  fail "$HOSTNAME: "'CPUs 4-27,32-55 are not all here' 'tune where it runs'
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
# cputune-plan: {"format":"torchrun","plan":{"nodes":2,"processes_per_node":2,"threads_per_process":24,"ccl_workers":4,"backend":"ccl","precision":"bf16","ipex":true,"allocator":"jemalloc","openmp":"libiomp5","preload":["/opt/conda/lib/libjemalloc.so.2","/opt/conda/lib/libiomp5.so"],"cpus":[[4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27],[32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55]],"ccl_cpus":[[0,1,2,3],[28,29,30,31]],"as_found":false,"settings":{}},"environment":{"ACCELERATE_USE_CPU":"true","OMP_NUM_THREADS":"24","ACCELERATE_MIXED_PRECISION":"bf16","CCL_WORKER_COUNT":"4","CCL_WORKER_AFFINITY":"0,1,2,3,28,29,30,31","MALLOC_CONF":"dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0","KMP_BLOCKTIME":"1","ACCELERATE_USE_IPEX":"true","LD_PRELOAD":"/opt/conda/lib/libjemalloc.so.2:/opt/conda/lib/libiomp5.so"},"hosts":["node1","node2"],"global_batch_size":12,"sequence_length":384,"trained":{"words":["$here/train.py","$here/recipe.json","--output_dir","out","--use_cpu","--bf16","--ddp_backend","ccl","--use_ipex","--per_device_train_batch_size","3"],"files":{"$here/train.py":"fd7f2ba81c90bf95","$here/recipe.json":"00796e632272bf13"},"model":null,"data":null}}
