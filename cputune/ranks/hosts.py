"""The hosts of one study, in the order in which its plans count their nodes.

They are checked before the first trial. Whatever would make every trial fail is reported at once,
with the host and what differs: a missing Python, other versions, another script or other data, no
network between them.
"""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cputune.carrier.interface import choose_interface, is_usable, plain_address
from cputune.doctor.hosts.differences import (
    SeenHost,
    architecture,
    libraries,
    python,
    training_stack,
)
from cputune.doctor.hosts.network import ask_ports, judge_ports, listening
from cputune.errors import CannotError, CputuneError, Unreachable, UsageError
from cputune.facts import HostFacts
from cputune.host.interpreter import training_python
from cputune.knobs.backend import interface_of
from cputune.plan import Plan
from cputune.probing.load import LOOK_SECONDS
from cputune.remote.named import Node, parse_distinct_hosts
from cputune.remote.probed import Probed, probe_each
from cputune.remote.reach import Reach, Ssh, find_reach
from cputune.script import script_file
from cputune.steps import HostLost, Infeasible
from cputune.workload import Workload

MOST_IMPORTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHosts:
    """The hosts of a study, and how they are reached; ``lost`` are those that are gone.

    ``interfaces`` are the network interfaces that ranks may talk on, the best one first; none for
    one host.
    """

    hosts: list[Probed]
    interfaces: tuple[str, ...] = ()
    reach: Reach = field(default_factory=Ssh)
    lost: dict[str, HostLost] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the hosts that are left."""
        return tuple(host.name for host in self.hosts)

    @property
    def facts(self) -> tuple[tuple[str, HostFacts], ...]:
        """The facts of each host, by its name."""
        return tuple((host.name, host.facts) for host in self.hosts)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the hosts: names where these are known here, else those of a link."""
        links = (
            plain_address(link)
            for host in self.hosts
            for link in host.facts.network.links or ()
            if is_usable(link)
        )
        return (*self.names, *links)

    def of(self, plan: Plan) -> tuple[Probed, ...]:
        """The hosts that a plan runs on.

        Raises HostLost where one is gone, Infeasible where there are too few.
        """
        if plan.nodes > len(self.hosts):
            raise Infeasible(f"the plan is for {plan.nodes} nodes, and there are {len(self.hosts)}")
        for host in self.hosts[: plan.nodes]:
            if host.name in self.lost:
                raise self.lost[host.name]
        return tuple(self.hosts[: plan.nodes])

    def interface(self, plan: Plan) -> str | None:
        """The network interface that the ranks of a plan are told to use."""
        asked = interface_of(plan)
        return asked if asked in self.interfaces else next(iter(self.interfaces), None)

    def neighbours(self) -> tuple[str, ...]:
        """Who else computes on the hosts just now, in words; only called when nothing of ours runs.

        A host that gives no answer is left out: the next trial will show what is wrong.
        """
        with contextlib.suppress(CputuneError):
            nodes = [host.node for host in self.hosts]
            told = probe_each(nodes, self.reach, look_seconds=LOOK_SECONDS)
            return tuple(
                f"{who} on {one.node.name}"
                for one in told
                if isinstance(one, Probed)
                for who in one.around.neighbours()
            )
        return ()


@contextlib.contextmanager
def open_hosts(
    nodes: Sequence[Node], reach: Reach, workload: Workload, *, seconds: float = 30.0
) -> Iterator[RankHosts]:
    """Look the hosts over; nothing of ours stays on them.

    Raises UsageError where one is named twice, Unreachable where one does not answer within
    ``seconds``, and CannotError where one cannot take part.
    """
    names = [node.name for node in nodes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice", hint="name each host once")
    paths = tuple(dict.fromkeys(needed_paths(workload)))
    told = probe_each(nodes, reach, seconds, content=paths)
    found = []
    for one in told:
        if not isinstance(one, Probed):
            raise one.unreachable or Unreachable(one.node.name, "it gave no answer")
        found.append(one)
    refuse_differences(found, paths)
    yield RankHosts(hosts=found, interfaces=interfaces_between(found, reach), reach=reach)


def open_named(
    hosts: str | Sequence[str], workload: Workload
) -> contextlib.AbstractContextManager[RankHosts]:
    """Look over hosts that are given by name, reached as ``cputune tune --hosts`` does."""
    named = hosts if isinstance(hosts, str) else ",".join(hosts)
    reach = find_reach(None, ssh=None, allocated=False, mpi=None)
    return open_hosts(parse_distinct_hosts(named), reach, workload)


def needed_paths(workload: Workload) -> Iterator[str]:
    """Paths that a trial needs unchanged on every host: the script, its imports, its data."""
    yield os.getcwd()
    script = script_file(workload.argv) if workload.recipe is None else None
    if script is not None:
        yield from map(os.path.abspath, own_modules(script))
    for word in workload.argv if workload.recipe is None else ():
        path = word.partition("=")[2] or word
        if os.path.exists(path) and not path.startswith("-"):
            yield os.path.abspath(path)


def own_modules(script: Path) -> Iterator[str]:
    """A script and the modules beside it that it imports, and those that these import."""
    folder, found, new = script.parent, dict[Path, None](), [script]
    while new and len(found) < MOST_IMPORTS:
        path = new.pop()
        found[path] = None
        with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
                names = [alias.name for alias in getattr(node, "names", ())]
                if isinstance(node, ast.ImportFrom):
                    names = [node.module or "", *(f"{node.module}.{name}" for name in names)]
                elif not isinstance(node, ast.Import):
                    continue
                for name in names:
                    place = folder.joinpath(*name.split("."))
                    both = (place.with_name(f"{place.name}.py"), place / "__init__.py")
                    new += [one for one in both if one not in found and one.is_file()]
    yield from map(str, found)


def refuse_differences(hosts: Sequence[Probed], paths: Sequence[str]) -> None:
    """Raise CannotError where ranks of these hosts cannot be one job."""
    for what, hint in _differences(hosts, paths):
        raise CannotError(what, hint=hint)


def _differences(hosts: Sequence[Probed], paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What keeps these hosts from being one job, each with a hint."""
    first = hosts[0]
    for one in hosts:
        if one.python != training_python():
            yield (
                f"there is no {training_python()} on {one.name}",
                "install the same environment at the same path there, or share its folder",
            )
        for path in paths:
            if one.content.get(path) is None:
                yield (
                    f"there is no {path} on {one.name}",
                    "the script, its data, and the folder that it is started in, are at the same "
                    "path on all hosts: copy them, or share the folder",
                )
            elif one.content[path] != first.content[path]:
                yield (
                    f"{path} on {one.name} is another one than on {first.name}",
                    f"copy it there: rsync -a {path} {one.name}:{path}",
                )
    seen = [
        SeenHost(node=one.node, seconds=one.seconds, facts=one.facts, python=one.python)
        for one in hosts
    ]
    for alike in (architecture, python, training_stack, libraries):
        for found in alike(seen):
            yield f"{found.title}: {found.evidence}", found.remedy


def interfaces_between(hosts: Sequence[Probed], reach: Reach) -> tuple[str, ...]:
    """The network interfaces that carry what ranks send from host to host, the best one first.

    Raises CannotError where none does.
    """
    if len(hosts) < 2:
        return ()
    chosen = choose_interface([(host.name, host.facts.network) for host in hosts])
    if chosen.name is None:
        raise CannotError(
            f"no network interface leads from host to host: {chosen.why}",
            hint="`cputune doctor --hosts` says what each of them has",
        )
    ways = listening(hosts)
    reached = ask_ports(hosts, reach, ways)
    carrying = tuple(name for name in ways if reached.carries(name))
    if carrying:
        return carrying
    said = list(judge_ports(reached))
    raise CannotError(
        f"no network interface carries what ranks send: {said[0].evidence}"
        if said
        else "no network interface carries what ranks send from host to host",
        hint="`cputune doctor --hosts` says what is wrong between them",
    )
