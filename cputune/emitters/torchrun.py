"""``torchrun``: one bash script for each node.

torchrun binds nothing on a CPU (``--numa-binding`` is for GPUs) and sets OMP_NUM_THREADS
to 1 where it is unset; rank.py binds, the script sets.
"""

from __future__ import annotations

from cputune.emitters import shell
from cputune.emitters.alone import script_of_one
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.words import ShellWord


def emit_torchrun(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The script. Raises UsageError where several nodes have no first host."""
    plan = job.plan
    if plan.world_size == 1:
        return (script_of_one(job, "torchrun", launcher="torchrun"),)
    shell.require_hosts(job)
    several = plan.nodes > 1
    hosts = [ShellWord(node.name) for node in job.nodes]
    values = {
        "nodes": str(plan.nodes),
        "ranks": str(plan.processes_per_node),
        "node_rank": '"$node_rank"' if several else "0",
        "numbered": "node_rank=${NODE_RANK:-}\n" if several else "",  # before it is cleared
        "address": hosts[0] if several else "127.0.0.1",
        "all": ",".join(hosts),
        "every": " ".join(hosts),
    }
    port = shell.fill("torchrun_port.sh" if several else "free_port.sh", values)
    return (shell.launch_script(job, "torchrun", "torchrun", **values, port=port),)


TORCHRUN = Format(
    name="torchrun",
    write=emit_torchrun,
    main="torchrun.sh",
    alone=True,
    consumers=("bash", "launcher"),
)
