"""Stands for the kubelet and the operator: the container's command of a job as processes here.

Each pod is a process group with the container's environment and the variables that the operator
sets. Paths of the image are led to the files beside the document, paths of its volumes into a
directory that is given.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from cputune.doctor.files.yaml_spans import Document
from cputune.host import read_document

Manifest: TypeAlias = Mapping[str, Any]
INHERITED = ("HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "HF_HOME", "HF_HUB_OFFLINE")
"""What a pod's processes keep of our environment; a container would have its own of them."""


def at(document: object, *path: str | int) -> Any:
    """What lies at a path of keys and indexes, None where there is nothing."""
    return Document(value=document).get(*path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What one pod runs: words and variables, as the kubelet would hand them over."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cpus: tuple[int, ...]


def pods_of(
    job: Manifest, path: Path, allowed: Sequence[int], volumes: Path, environment: Mapping[str, str]
) -> tuple[Pod, ...]:
    """The pods that the operator would start, the master first."""
    port, templates = _free_port(), _containers(job)
    told = at(job, "spec", "nprocPerNode") or at(job, "spec", "trainer", "numProcPerNode")
    processes = str(told or "auto")
    pods = []
    for index, container in enumerate(templates):
        limits = at(container, "resources") or at(container, "resourcesPerNode")
        asked = str(at(limits, "limits", "cpu"))
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


def _containers(job: Manifest) -> list[Manifest]:
    """The container of each pod; a TrainJob says what is in one as far as its runtime does not."""
    trainer = at(job, "spec", "trainer")
    if trainer is not None:
        return [trainer] * (at(trainer, "numNodes") or 1)
    replicas = at(job, "spec", "pytorchReplicaSpecs")
    return [
        at(replicas, role, "template", "spec", "containers", 0)
        for role in sorted(replicas)
        for _ in range(at(replicas, role, "replicas"))
    ]


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
