"""A file that is judged, with the machine and the packages that will run its launches."""

from __future__ import annotations

import contextlib
import math
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Concatenate, ParamSpec

from packaging.version import Version

from cputune.host import Host
from cputune.host.facts import Core, HostFacts, Topology
from cputune.host.probing import probe
from cputune.launch.edit import Edit
from cputune.launch.places import Places
from cputune.launch.target import HERE, Target
from cputune.stack import Versions, versions_of
from cputune.stack.tables import load

_More = ParamSpec("_More")


class FilesOf(Host):
    """Reads only the files of a host: the launch runs on other machines."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def read_text(self, path: str) -> str:
        """The text of a file that login node and job share."""
        return self._host.read_text(path)


GPUS = ("the GPUs that the job asks for",)


def with_gpus(facts: HostFacts) -> HostFacts:
    """The same machine with the GPUs that a job asks for, and a torch that can use them."""
    packages = []
    for package in facts.packages:
        if package.name == "torch":
            version = package.version.partition("+")[0] if package.version else package.version
            package = replace(package, build=None, version=version)
        packages.append(package)
    return replace(facts, accelerators=GPUS, packages=tuple(packages))


def facts_elsewhere(facts: HostFacts, cpus: float | None) -> HostFacts:
    """Facts of a machine with this many CPUs and these packages; everything else is unknown."""
    numbers = tuple(range(math.ceil(cpus or 0)))
    return replace(
        probe(Host()),
        topology=Topology(
            cores=tuple(Core(cpus=(number,), socket=0, numa_node=None) for number in numbers),
            online=numbers,
            present=None,
            allowed=numbers,
            numa_nodes=(),
        ),
        packages=facts.packages,
        python=facts.python,
        recorded=facts.recorded,
        accelerators=facts.accelerators,
    )


def facts_in_container(facts: HostFacts, cpus: float) -> HostFacts:
    """Facts of a container on this machine, with a limit of its CPUs; 0 is no limit."""
    inside = facts_elsewhere(facts, min(cpus, len(facts.topology.online)))
    return inside if cpus else replace(inside, topology=facts.topology)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One file, with the machine and packages that will run it.

    Attributes:
        facts: of the machine that the launch will run on.
        target: what is known of that machine, and from where.
        host: where the files that the launch names are looked up.
        here: whether the launch will run on that machine, so that its ranks are judged too.
        parser: what reads the flags of its script ("trainer": TrainingArguments, or "its own"), if
            known.
        lines: lines of keys or variables, for a file that has no lines of commands.
        places: places of its words, so that findings can be fixed there; None if the launch is in
            no file.
    """

    name: str
    facts: HostFacts
    host: Host
    target: Target = HERE
    here: bool = True
    parser: str | None = None
    lines: Mapping[str, int | None] = field(default_factory=dict)
    places: Places | None = None

    def on(self, target: Target) -> Context:
        """This file on the machines of a job; of this machine only files are read."""
        if not target.elsewhere:
            return replace(self, target=target)
        facts = facts_elsewhere(self.facts, target.cpus_per_node)
        if target.gpus:
            facts = with_gpus(facts)
        return replace(self, facts=facts, host=FilesOf(self.host), target=target)

    def edits_by(
        self,
        make: Callable[Concatenate[Places, _More], tuple[Edit, ...]],
        *what: _More.args,
        **more: _More.kwargs,
    ) -> tuple[Edit, ...]:
        """The edits that a function of ``fixing`` makes; empty without a file."""
        if self.places is None:
            return ()
        return make(self.places, *what, **more)

    @property
    def versions(self) -> Versions:
        """What the launch is judged by."""
        return versions_of(self.facts)

    @property
    def accelerate(self) -> Version:
        """The installed accelerate, else the newest of the tables."""
        return self.versions.accelerate or load().era("today").versions["accelerate"]

    @property
    def read_by(self) -> str:
        """``accelerate 1.15.0``, with a remark if it is not installed."""
        absent = " (not installed; the newest of the tables)"
        if self.versions.accelerate:
            absent = ""
        return f"accelerate {self.accelerate}{absent}"

    def reads_variable(self, name: str) -> bool:
        """Whether the file itself uses the value of a variable."""
        if self.places is None:
            return False
        return re.search(rf"\$\{{?{re.escape(name)}\b", self.places.code) is not None

    def text_of(self, path: str) -> str | None:
        """The text of a file that the file names; None if it cannot be read."""
        for place in (path, posixpath.join(posixpath.dirname(self.name), path)):
            with contextlib.suppress(OSError, ValueError):
                return self.host.read_text(place)
        return None

    def at(self, line: int | None, text: str) -> str:
        """``train.sh:12: text``; a line of ``lines`` that the text names takes precedence over
        ``line``.
        """
        line = next((self.lines[w] for w in re.findall(r"\w+", text) if w in self.lines), line)
        text = re.sub(r"--(\w+)", lambda key: key[1] if key[1] in self.lines else key[0], text)
        if line:
            return f"{self.name}:{line}: {text}"
        return f"{self.name}: {text}"
