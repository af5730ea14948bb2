
# Start this on every node, from a folder that all of them see (pdsh begins in $HOME):
#   pdsh -w {{all}} "cd '$PWD' && bash launch/torchrun.sh"
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
print(*[at for at, host in enumerate(sys.argv[1:]) if is_here(host)])' {{every}} 2>/dev/null)}
[[ $node_rank =~ ^[0-9]+$ && $node_rank -lt {{nodes}} ]] ||
  fail "$HOSTNAME is not one alone of {{all}}" "NODE_RANK=0 on the first, 1 on the next"
# All nodes must agree on the port, so it cannot be picked free here.
port=${PORT:-29500}
((node_rank > 0)) || "$python" -c 'import socket, sys
socket.create_server(("", int(sys.argv[1])))' "$port" 2>/dev/null ||
  fail "port $port is not free here" "set PORT to another one, on every node"
