
# Start this on every node: pdsh -w {{all}} FILE. Each finds which of them it is; NODE_RANK
# (0 on the first, 1 on the next) says it where names and addresses do not.
# All nodes must agree on the port, so it cannot be picked free here.
[[ -n $node_rank ]] || node_rank=$("$python" "$here/rank.py" --which {{all}})
if [[ ! $node_rank =~ ^[0-9]+$ ]] || ((node_rank >= {{nodes}})); then
  fail "NODE_RANK is not a number below {{nodes}}" "NODE_RANK=0 on the first node, 1 on the next"
fi
port=${PORT:-29500}
((node_rank > 0)) || "$python" -c 'import socket, sys
socket.create_server(("", int(sys.argv[1])))' "$port" 2>/dev/null ||
  fail "port $port is not free here" "set PORT to another one, on every node"
