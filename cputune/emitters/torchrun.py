"""``torchrun``: one bash script for each node. rank.py binds, the script sets OMP_NUM_THREADS."""

from __future__ import annotations

from cputune.emitters import bash
from cputune.emitters.checked_words import WIDTH, ShellWord
from cputune.emitters.command import applied
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.one_rank import script_of_one
from cputune.launch.launchers.torchrun import on_nodes
from cputune.launch.write import LaunchLine, ShellText, start


def emit_torchrun(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The script. Raises UsageError if several nodes have no first host."""
    plan = job.plan
    if plan.world_size == 1:
        return (script_of_one(job, "torchrun", launcher="torchrun"),)
    bash.require_hosts(job)
    several = plan.nodes > 1
    hosts = [ShellWord(node.name) for node in job.site.nodes]
    values = {
        "numbered": "node_rank=${NODE_RANK:-}\n" if several else "",  # before it is cleared
        "nodes": str(plan.nodes),
        "all": ",".join(hosts),
        "every": " ".join(hosts),
    }
    port = bash.fill("torchrun_port.sh" if several else "free_port.sh", values)
    started = _started(job)
    script = bash.launch_script(
        job,
        "torchrun",
        "torchrun",
        **values,
        port=port,
        rank=bash.rank(bash.rank_words(job, "torch")),
        start=started.command(WIDTH),
        launches=(started.launch,),
    )
    return (script,)


def _started(job: LaunchJob) -> LaunchLine:
    several = job.plan.nodes > 1
    options = on_nodes(
        nodes=job.plan.nodes,
        ranks=job.plan.processes_per_node,
        node_rank=ShellText("$node_rank") if several else "0",
        address=job.site.nodes[0].name if several else "127.0.0.1",
        port=ShellText("$port"),
    )
    return start(
        "torchrun",
        (bash.PYTHON, "-m", "torch.distributed.run"),
        options,
        bash.trained(job.command),
        through=(*bash.rank_words(job, "torch"), "--", *bash.trained(applied(job))),
        written=(bash.RANK, *bash.ALL_TRAINED, bash.MORE),
        environment=bash.rank_variables(job),
        removed=bash.names_cleared(job),
    )


TORCHRUN = Format(
    name="torchrun",
    write=emit_torchrun,
    main="torchrun.sh",
    alone=True,
    consumers=("bash", "launcher"),
)
