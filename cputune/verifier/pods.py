"""The container's command of a Kubernetes job, run here as N "pods".

Each pod is a group of processes with the container's environment and the variables that
the operator sets, and with CPUs of its own where this machine has enough of them, as the
static CPU manager would give it. Paths of the image are led to the files beside the document,
paths of its volumes into a directory that is given.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from cputune import cpulist
from cputune.host import Command, Host, read_document
from cputune.host.interpreter import training_python
from cputune.placing import pod_shares, seen_cores
from cputune.plan import Plan
from cputune.ranks.launched import Rank, observe
from cputune.ranks.work_folder import WorkFolder
from cputune.verifier.checks import cpus_of, placed
from cputune.verifier.kubernetes import Manifest, at, job_pods, ranks_asked
from cputune.verifier.records import (
    Artefact,
    ConsumerAnswer,
    Evidence,
    Expected,
    Outcome,
    not_checked,
    not_installed,
)
from cputune.verifier.scripts import (
    INSTALL_TORCH,
    measured,
    no_plan,
    not_run,
    versions,
)

MOST_THREADS_PER_CPU = 4
PIN = (
    "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); "
    "os.execvp(sys.argv[2], sys.argv[2:])"
)


class PodConsumer:
    """The programs inside the image, as far as they are installed here."""

    def answer(self, artefact: Artefact, expected: Expected, host: Host) -> ConsumerAnswer:
        """Run every job of the file, and compare what its ranks saw with the plan."""
        jobs = [
            document
            for document in yaml.safe_load_all(artefact.text)
            if at(document, "kind") in ("PyTorchJob", "TrainJob")
        ]
        if not jobs:
            return ConsumerAnswer()
        consumer = "local pods"
        if not expected.run:
            return ConsumerAnswer(checks=(not_run(),))
        if expected.plan is None:
            return ConsumerAnswer(checks=(no_plan(consumer),))
        with WorkFolder() as work:
            here = replace(expected, hosts=())  # all pods are on this machine
            return _run(jobs[0], artefact.path, here, expected.plan, work.path, host)


def _run(
    job: Manifest, path: Path, expected: Expected, plan: Plan, volumes: Path, host: Host
) -> ConsumerAnswer:
    # The image's own interpreter cannot be had here: ours stands for it, and is named.
    environment = {"PYTHON": training_python(), **host.environment()}
    packages = versions(environment["PYTHON"], environment, host)
    if "torch" not in packages:
        return ConsumerAnswer(checks=(not_installed("launch", "torch", INSTALL_TORCH),))
    allowed = host.affinity() or (0,)
    pods = pods_of(job, path, allowed, volumes, environment)
    consumer = f"{len(pods)} local pod{'s' if len(pods) > 1 else ''}, torch {packages['torch']}"
    consumer += f" of {environment['PYTHON']}, not of the image"
    problem = _cannot_run(pods, plan, allowed, consumer)
    if problem is not None:
        return ConsumerAnswer(checks=(problem,))
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
    """Every rank on the CPUs of its pod that the plan's cut gives it (``pod_shares``).

    Where pods share CPUs, nothing may be bound.
    """
    own = len({pod.cpus for pod in pods}) == len(pods)
    each = plan.processes_per_node
    rows = []
    for rank in ranks:
        pod = pods[min(rank.number // each, len(pods) - 1)]
        seen, shares = cpus_of(rank), None
        if own:
            cores = seen_cores(pod.cpus)
            shares = pod_shares(cores, each, plan.threads_per_process, plan.ccl_workers)
        good = set(seen) <= set(pod.cpus) and len(seen) >= plan.threads_per_process
        wanted = f"{plan.threads_per_process} of {cpulist.render(pod.cpus)}"
        if shares is not None:
            share = shares[rank.number % each][0]
            good, wanted = set(seen) == set(share), cpulist.render(share)
        rows.append(placed(rank, good=good, wanted=wanted))
    return tuple(rows)


def _argv(pod: Pod) -> tuple[str, ...]:
    return (sys.executable, "-c", PIN, ",".join(map(str, pod.cpus)), *pod.argv)


def _cannot_run(
    pods: Sequence[Pod], plan: Plan, allowed: Sequence[int], consumer: str
) -> Outcome | None:
    """Why the command of the image cannot be tried on this machine."""
    threads = plan.world_size * plan.threads_per_process
    preloads = re.split(r"[:\s]+", pods[0].environment.get("LD_PRELOAD", ""))
    missing = "".join([one for one in preloads if "/" in one and not Path(one).exists()][:1])
    scripts = [word for word in pods[0].argv if word.endswith(".py")]
    script = next((word for word in scripts if not Path(word).exists()), None)
    for hindered, why, remedy in (
        (not pods[0].argv, "the container has no command of its own", None),
        (
            missing,
            f"the image preloads {missing}, which is not on this machine",
            "install it here, or verify where the image runs",
        ),
        (
            script is not None,
            f"the image's {script} is neither beside the document nor here",
            "run this from the directory that holds the script",
        ),
        (
            threads > MOST_THREADS_PER_CPU * len(allowed),
            f"{threads} threads of {len(pods)} pods are too many for {len(allowed)} CPUs",
            "verify the same plan with fewer nodes: cputune emit --nodes 1",
        ),
    ):
        if hindered:
            return not_checked("launch", why, remedy, consumer)
    return None


INHERITED = ("HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "HF_HOME", "HF_HUB_OFFLINE")
"""What a pod's processes keep of our environment; a container would have its own of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What one pod runs: words and variables, as the kubelet would hand them over."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cpus: tuple[int, ...]


def pods_of(
    job: Manifest,
    path: Path,
    allowed: Sequence[int],
    volumes: Path,
    environment: Mapping[str, str],
) -> tuple[Pod, ...]:
    """The pods that the operator would start, the master first."""
    port, templates, processes = _free_port(), job_pods(job), ranks_asked(job)
    pods = []
    for index, template in enumerate(templates):
        container = at(template, "spec", "containers", 0) or {}
        asked = str(at(container, "resources", "limits", "cpu"))
        cpus = share(allowed, index, len(templates), int(asked) if asked.isdigit() else 0)
        operator = operator_variables(job, index, len(templates), processes, port)
        here = LedHere(job, container, path, volumes / str(index))
        variables = _base(environment)
        for entry in (*(at(container, "env") or ()), *operator.items()):
            name, value = entry if isinstance(entry, tuple) else (at(entry, "name"), _value(entry))
            if at(entry, "valueFrom") is not None:  # a Secret: ours stands for the cluster's
                if name not in environment:
                    continue
                value = environment[name].replace("$", "$$")
            variables[str(name)] = here(expand(value, variables))
        words = [*(at(container, "command") or ()), *(at(container, "args") or ())]
        argv = tuple(here(expand(str(word), variables)) for word in words)
        pods.append(Pod(argv=argv, environment=variables, cpus=cpus))
    return tuple(pods)


def operator_variables(
    job: Manifest, node: int, nodes: int, processes: str, port: int
) -> dict[str, str]:
    """What the operator adds to the environment of one node's container.

    kubeflow/training-operator 1.9 ``pkg/controller.v1/pytorch/envvar.go``: WORLD_SIZE counts
    ranks, RANK counts pods; kubeflow/trainer ``plugins/torch/torch.go``: PET_* alone.
    """
    variables = {
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": processes,
        "PET_NODE_RANK": str(node),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
    }
    if job.get("kind") != "PyTorchJob":
        return variables
    ranks = nodes * (int(processes) if processes.isdigit() else 1)
    return {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "RANK": str(node),
        **variables,
    }


def expand(text: str, variables: Mapping[str, str]) -> str:
    """``$(NAME)`` as the kubelet expands it in env, command and args; ``$$`` is one dollar.

    A name that is not set stays as it is (k8s.io/kubernetes third_party/forked/golang/expansion).
    """

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, text)


def share(allowed: Sequence[int], index: int, pods: int, asked: int) -> tuple[int, ...]:
    """The CPUs of a pod: its own where there are enough for all, else those of everybody."""
    if asked and len(allowed) >= pods * asked:
        return tuple(allowed[index * asked : (index + 1) * asked])
    return tuple(allowed)


def _base(environment: Mapping[str, str]) -> dict[str, str]:
    kept = {name: environment[name] for name in INHERITED if name in environment}
    python = Path(environment["PYTHON"])
    path = environment.get("PATH", "")
    kept["PATH"] = f"{python.parent}:{path}" if python.is_absolute() else path
    return kept


def _value(entry: object) -> str:
    value = at(entry, "value")
    return "" if value is None else str(value)


class LedHere:
    """Leads paths of the image and of its volumes to places on this machine."""

    def __init__(self, job: Manifest, container: Manifest, path: Path, volumes: Path) -> None:
        self._beside = path.resolve().parent
        told = at(container, "workingDir")
        folders = [str(told)] if told else []
        folders += _image_folders(path.parent) or ["/workspace"]
        # The longest first: /workspace/project lies in /workspace.
        self._folders = sorted((f.rstrip("/") + "/" for f in folders), key=len, reverse=True)
        mounts = [mount.rstrip("/") for mount in _mount_paths(job)]
        self._mounts = [mount for mount in mounts if mount not in ("", "/dev/shm")]
        self._volumes = volumes
        volumes.mkdir(parents=True, exist_ok=True)

    def __call__(self, word: str) -> str:
        for folder in self._folders:
            if not word.startswith(folder):
                continue
            inside = word.removeprefix(folder)
            for directory in (self._beside, Path.cwd()):
                if (directory / inside).exists():
                    return str(directory / inside)
        for mount in self._mounts:
            if word == mount or word.startswith(mount + "/"):
                return str(self._volumes) + word[len(mount) :]
        return word


def _mount_paths(document: object) -> Iterator[str]:
    """Every ``mountPath``, wherever the job says it (a TrainJob has them in its patches)."""
    if isinstance(document, Mapping):
        if isinstance(document.get("mountPath"), str):
            yield document["mountPath"]
        for value in document.values():
            yield from _mount_paths(value)
    elif isinstance(document, list):
        for value in document:
            yield from _mount_paths(value)


def _image_folders(directory: Path) -> list[str]:
    """Where the Dockerfile beside the document puts files: its WORKDIR, and targets of COPY."""
    try:
        text = read_document(directory / "Dockerfile")
    except OSError:
        return []
    return re.findall(r"^(?:WORKDIR|COPY\s.*\s)\s*(/\S+)$", text, re.MULTILINE)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
