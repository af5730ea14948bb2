"""The container's command of a Kubernetes job, run here as N "pods".

Each pod is a group of processes with the container's environment and the variables that
the operator sets, and with CPUs of its own where this machine has enough of them, as the
static CPU manager would give it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from cputune import cpulist
from cputune.host import Command, Host
from cputune.plan import Plan
from cputune.ranks.launched import Rank, observe
from cputune.ranks.work_folder import WorkFolder
from cputune.verifier.checks import cpus_of, placed
from cputune.verifier.interface import Answer, Artefact, Expected, not_installed
from cputune.verifier.kubelet import Pod, pods_of
from cputune.verifier.launchers import (
    INSTALL_TORCH,
    measured,
    no_plan,
    not_run,
    versions,
)
from cputune.verifier.records import NOT_CHECKED, Evidence, Outcome
from cputune.verifier.rules import Document, at

MOST_THREADS_PER_CPU = 4
PIN = (
    "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); "
    "os.execvp(sys.argv[2], sys.argv[2:])"
)


class PodConsumer:
    """The programs inside the image, as far as they are installed here."""

    formats = ("pytorchjob", "trainjob")

    def answer(self, artefact: Artefact, expected: Expected, host: Host) -> Answer:
        """Run every job of the file, and compare what its ranks saw with the plan."""
        jobs = [
            document
            for document in yaml.safe_load_all(artefact.text)
            if at(document, "kind") in ("PyTorchJob", "TrainJob")
        ]
        if not jobs:
            return Answer()
        consumer = "local pods"
        if not expected.run:
            return Answer(checks=(not_run(),))
        if expected.plan is None:
            return Answer(checks=(no_plan(consumer),))
        with WorkFolder() as work:
            here = replace(expected, hosts=())  # all pods are on this machine
            return _run(jobs[0], artefact.path, here, expected.plan, work.path, host)


def _run(
    job: Document, path: Path, expected: Expected, plan: Plan, volumes: Path, host: Host
) -> Answer:
    # The image's own interpreter cannot be had here: ours stands for it, and is named.
    environment = {"PYTHON": sys.executable, **host.environment()}
    packages = versions(environment["PYTHON"], environment, host)
    if "torch" not in packages:
        return Answer(checks=(not_installed("launch", "torch", INSTALL_TORCH),))
    allowed = host.affinity() or (0,)
    pods = pods_of(job, path, allowed, volumes, environment)
    consumer = f"{len(pods)} local pod{'s' if len(pods) > 1 else ''}, torch {packages['torch']}"
    consumer += f" of {environment['PYTHON']}, not of the image"
    problem = _cannot_run(pods, plan, allowed, consumer)
    if problem is not None:
        return Answer(checks=(problem,))
    commands = [Command(argv=_argv(pod), environment=pod.environment) for pod in pods]
    return measured(
        lambda: observe(
            commands,
            ranks=plan.world_size,
            steps=expected.steps,
            timeout_seconds=expected.timeout_seconds,
            show=expected.environment or (),
        ),
        expected,
        plan,
        consumer,
        affinity=lambda p, ranks: pod_affinity(p, ranks, pods),
        timed=len(pods) == 1,  # several nodes on one machine say nothing of speed
    )


def pod_affinity(plan: Plan, ranks: Sequence[Rank], pods: Sequence[Pod]) -> tuple[Evidence, ...]:
    """A rank has as many CPUs of its pod as it has threads, and shares none with its sisters.

    Where pods share CPUs, nothing may be bound.
    """
    own = len({pod.cpus for pod in pods}) == len(pods)
    rows = []
    for rank in ranks:
        pod = pods[min(rank.number // plan.processes_per_node, len(pods) - 1)]
        others = {
            cpu
            for other in ranks
            if other is not rank and other.number // plan.processes_per_node == pods.index(pod)
            for cpu in cpus_of(other)
        }
        seen = cpus_of(rank)
        good = set(seen) <= set(pod.cpus) and len(seen) >= plan.threads_per_process
        if own and plan.processes_per_node > 1:
            good = good and not others & set(seen)
        wanted = f"{plan.threads_per_process} of {cpulist.render(pod.cpus)}"
        rows.append(placed(rank, good=good, wanted=wanted))
    return tuple(rows)


def _argv(pod: Pod) -> tuple[str, ...]:
    return (sys.executable, "-c", PIN, ",".join(map(str, pod.cpus)), *pod.argv)


def _cannot_run(
    pods: Sequence[Pod], plan: Plan, allowed: Sequence[int], consumer: str
) -> Outcome | None:
    """Why the command of the image cannot be tried on this machine."""
    why = remedy = None
    threads = plan.world_size * plan.threads_per_process
    missing = [
        library
        for library in re.split(r"[:\s]+", pods[0].environment.get("LD_PRELOAD", ""))
        if "/" in library and not Path(library).exists()
    ]
    script = next((word for word in pods[0].argv if word.endswith(".py")), None)
    if not pods[0].argv:
        why = "the container has no command of its own"
    elif missing:
        why = f"the image preloads {missing[0]}, which is not on this machine"
        remedy = "install it here, or verify where the image runs"
    elif script is not None and not Path(script).exists():
        why = f"the image's {script} is not beside the document"
        remedy = "run this from the directory that holds the script"
    elif threads > MOST_THREADS_PER_CPU * len(allowed):
        why = f"{threads} threads of {len(pods)} pods are too many for {len(allowed)} CPUs"
        remedy = "verify the same plan with fewer nodes: cputune emit --nodes 1"
    if why is None:
        return None
    return Outcome(name="launch", state=NOT_CHECKED, consumer=consumer, summary=why, remedy=remedy)
