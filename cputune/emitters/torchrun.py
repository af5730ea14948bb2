"""``torchrun``: one bash script for each node.

torchrun binds nothing on a CPU (``--numa-binding`` is for GPUs) and sets OMP_NUM_THREADS
to 1 where it is unset; rank.py binds, the script sets.
"""

from __future__ import annotations

from cputune.emitters import shell
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.words import ShellWord

SEVERAL_NODES = """
# Start this on every node: pdsh -w {all} FILE. Each finds which of them it is; NODE_RANK
# (0 on the first, 1 on the next) says it where names and addresses do not.
# All nodes must agree on the port, so it cannot be picked free here.
[[ -n $node_rank ]] || node_rank=$("$python" "$here/rank.py" --which {all})
if [[ ! $node_rank =~ ^[0-9]+$ ]] || ((node_rank >= {nodes})); then
  fail "NODE_RANK is not a number below {nodes}" "NODE_RANK=0 on the first node, 1 on the next"
fi
port=${{PORT:-29500}}
((node_rank > 0)) || "$python" -c 'import socket, sys
socket.create_server(("", int(sys.argv[1])))' "$port" 2>/dev/null ||
  fail "port $port is not free here" "set PORT to another one, on every node"
"""


MEET = """# All nodes start, or none: where one cannot have its CPUs all end, and say why.
MASTER_ADDR={address} MASTER_PORT=$port \\
  "$python" "${{rank[@]}}" --meet {seconds} --node "$node_rank/{nodes}" --look
"""
MEET_SECONDS = 600
"""So long torchrun itself would wait for the other nodes, which people start one by one."""


def emit_torchrun(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The script. Raises UsageError where several nodes have no first host."""
    plan = job.plan
    shell.require_hosts(job)
    several = plan.nodes > 1
    text = shell.head(
        job,
        "torchrun",
        f"Launch of {job.workload.name} with torchrun.",
        inputs="node_rank=${NODE_RANK:-}\n" if several else "",
    )
    text += shell.oneccl(job) + shell.training(job)
    text += "\n" + shell.exports(shell.variables(job))
    node_rank = "0"
    address = "127.0.0.1"
    if several:
        address = job.nodes[0].name
        text += SEVERAL_NODES.format(
            all=ShellWord(",".join(node.name for node in job.nodes)), nodes=plan.nodes
        )
        node_rank = '"$node_rank"'
    else:
        text += shell.FREE_PORT
    launch = [
        '"$python" -m torch.distributed.run',
        f"--nnodes {plan.nodes} --node-rank {node_rank}",
        f"--nproc-per-node {plan.processes_per_node}",
        f'--master-addr {ShellWord(address)} --master-port "$port"',
    ]
    text += shell.lines_array("launch", launch) + shell.rank(job, "torch", here=True)
    if several:
        text += MEET.format(address=ShellWord(address), seconds=MEET_SECONDS, nodes=plan.nodes)
    text += shell.start('"${rank[@]}" -- "${train[@]}"', watched=False)
    return (shell.script("torchrun.sh", text), *shell.meeting(job))


TORCHRUN = Format(
    name="torchrun",
    write=emit_torchrun,
    main="torchrun.sh",
    beside="nothing",
    fits="none of these",
    start="`launch/torchrun.sh`, on every node (`pdsh`)",
    known_by=r"\btorchrun\b|torch\.distributed\.run\b",
    consumers=("bash", "launcher"),
    script=True,
)
