"""Threads of a container with a limit of CPU time, which no library reads."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cputune.doctor.checks.limits import quota_threads
from cputune.doctor.files.context import Context
from cputune.doctor.files.yaml_spans import Document, Path, with_item, with_key
from cputune.doctor.finding import Finding
from cputune.launch.edit import Edit
from cputune.launch.launch import Launch

COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedContainer:
    """A container with a limit of CPU time.

    Attributes:
        at: its path.
        cpus: its limit, 0 if it has none.
        limit: the key of the limit, for the evidence.
        key: the key of its variables: env, or environment.
        named: variables that it sets to any value; None if it takes others from elsewhere.
    """

    at: Path
    cpus: float
    limit: str
    key: str
    named: Collection[str] | None

    @property
    def variables(self) -> Path:
        """The path of its variables."""
        return (*self.at, self.key)


def judge_quota(
    launches: Iterable[Launch], container: LimitedContainer, document: Document, context: Context
) -> Iterator[Finding]:
    """Processes that start a thread for each core of their node, with the time of a few.

    A limit is a quota of CPU time, which no library reads.
    """
    if not container.cpus or container.named is None:
        return
    for launch in launches:
        if not _starts_all_threads(launch, container.named):
            continue
        threads = max(1, math.floor(container.cpus))
        text = (
            f"{container.limit} {container.cpus:g} is a quota of CPU time, and OMP_NUM_THREADS is "
            f"not set: {launch.program} starts a thread for each core of the node"
        )
        yield quota_threads.finding(
            context.at(document.line(*container.at), text),
            remedy=f"Set OMP_NUM_THREADS to {threads} in the variables of the container.",
            edits=_set_threads(document, context, container, threads),
        )
        return


def _starts_all_threads(launch: Launch, named: Collection[str]) -> bool:
    """Whether nothing sets the threads of the processes that a launch starts.

    torchrun sets one for several ranks, accelerate in any case; mpirun binds its ranks.
    """
    counted = any(name in named or name in launch.environment for name in COUNTS)
    if counted or launch.cpus or not launch.script:
        return False
    if launch.launcher == "torchrun":
        return launch.ranks == 1
    return launch.launcher == "python" and not launch.part


def _set_threads(
    document: Document, context: Context, container: LimitedContainer, threads: int
) -> tuple[Edit, ...]:
    """The edit that adds OMP_NUM_THREADS to the variables of a container."""
    path = container.variables
    pair = f'{{name: OMP_NUM_THREADS, value: "{threads}"}}'
    if container.key != "env":
        pair = f"OMP_NUM_THREADS={threads}"
    if document.items(*path):
        return with_item(document, context, pair, path)
    first = next(iter(document.mapping(*path)), None)
    if first is not None:
        line = f'OMP_NUM_THREADS: "{threads}"'
        return with_key(document, context, line, *path, first, behind=False)
    for beside in ("command", "args", "image"):
        line = f"{container.key}: [{pair}]"
        edits = with_key(document, context, line, *container.at, beside)
        if edits:
            return edits
    return ()


def names_of(container: Mapping[str, Any], key: str, elsewhere: str) -> set[str] | None:
    """The names of all variables of a container; None if it takes others from elsewhere."""
    if container.get(elsewhere) is not None:
        return None
    names = set[str]()
    items = container.get(key)
    if not isinstance(items, (dict, list)):
        return names
    for item in items:
        name = item
        if isinstance(item, dict):
            name = item.get("name")
        names.add(str(name).partition("=")[0])
    return names
