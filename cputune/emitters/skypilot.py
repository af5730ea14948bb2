"""``skypilot``: a task of SkyPilot, which finds machines in a cloud and starts it on each.

Its machines are others than the one that was tuned, so ranks take the plan's CPUs where there are
such, and keep what they have elsewhere (``--bind offered``).
"""

from __future__ import annotations

import re

from cputune.emitters import container, header, shell, words
from cputune.emitters import kubernetes as k8s
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.job import job_name
from cputune.emitters.words import VariableName

RUN = """set -euo pipefail
cd ~/sky_workdir
here=$PWD/launch
python=python3
first=$(head -n 1 <<<"$SKYPILOT_NODE_IPS")
"""
ELSEWHERE = (
    "SkyPilot's machines are others than the one that was tuned: tune on one of them first "
    "(`sky launch`, then `cputune tune` there) for a plan that is theirs."
)


def emit_skypilot(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The task, and what lies in launch/ beside it. Raises UsageError."""
    plan = job.plan
    notes = (ELSEWHERE, "Start it where the script lies, with these files in launch/ below.")
    run = RUN + shell.oneccl(job) + shell.exports(shell.variables(job, pods=True))
    launch = [
        '"$python" -m torch.distributed.run',
        f'--nnodes {plan.nodes} --node-rank "$SKYPILOT_NODE_RANK"',
        f"--nproc-per-node {plan.processes_per_node}",
        '--master-addr "$first" --master-port 29500',
    ]
    run += shell.lines_array("launch", launch)
    run += shell.rank(job, "torch", binding="offered")
    run += shell.array("train", job.command)
    run += 'exec "${launch[@]}" "${rank[@]}" -- "${train[@]}"\n'
    gib = re.fullmatch(r"([0-9]+)Gi", k8s.memory(job))
    resources = {"cpus": words.YamlScalar(f"{k8s.pod_cpus(job)}+")}
    if gib:
        resources["memory"] = words.YamlScalar(f"{gib[1]}+")
    document: dict[str, object] = {
        "name": words.YamlScalar(job_name(job)),
        "num_nodes": plan.nodes,
        "workdir": ".",
        "resources": resources,
        "setup": words.Block("set -e\ncd ~/sky_workdir\n" + container.pip_lines(job)),
        "run": words.Block(run),
    }
    if job.workload.secrets:
        empty = {VariableName(name): None for name in job.workload.secrets}
        document["secrets"] = empty  # sky launch --secret NAME
    text = header.full(job, "skypilot", f"Launch of {job.workload.name} by SkyPilot.", notes)
    return (
        EmittedFile(name="skypilot.yaml", text=text + words.dump(document), notes=notes),
        *shell.meeting(job),
        EmittedFile(name=container.CONSTRAINTS, text=container.constraints(job)),
    )


SKYPILOT = Format(
    name="skypilot",
    write=emit_skypilot,
    main="skypilot.yaml",
    beside="`constraints.txt`",
    fits="SkyPilot",
    start="`sky launch launch/skypilot.yaml`",
    known_by=r"SKYPILOT_NODE_RANK",
    untried="held against SkyPilot's own schema of tasks; no cloud was here to start it",
)
