"""Hosts are reached side by side and looked over, before the first trial.

What would make every trial fail on one of them is said at once: no such Python, other versions,
no script at that path.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

from cputune.carrier.interface import choose_interface
from cputune.errors import CannotError, Unreachable, UsageError
from cputune.host import Command
from cputune.nodes.far_host import FarHost
from cputune.nodes.line import Line
from cputune.nodes.many import Lines, on_each
from cputune.nodes.named import Node
from cputune.nodes.reach import Reach
from cputune.probing import probe
from cputune.ranks.hosts import RankHost, RankHosts, Way
from cputune.ranks.there import send_modules
from cputune.script import script_file
from cputune.workload import Workload

SAME_VERSIONS = ("torch", "transformers", "accelerate", "intel_extension_for_pytorch")
"""What the ranks of one job must have in the same version on all hosts."""

LOOK_SECONDS = 60.0


@contextlib.contextmanager
def open_hosts(
    nodes: Sequence[Node], reach: Reach, workload: Workload, *, seconds: float = 30.0
) -> Iterator[RankHosts]:
    """Reach the hosts and look them over; whatever is started on them is ended with the block.

    Raises UsageError where one is named twice, Unreachable where one is not reached within
    ``seconds``, and CannotError where one cannot take part.
    """
    names = [node.name for node in nodes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice", hint="name each host once")
    with Lines() as lines:
        looked = on_each(nodes, reach, lambda line: _look_over(line, workload), seconds, keep=lines)
        hosts = []
        for heard in looked:
            if heard.answer is None:
                raise heard.unreachable or Unreachable(heard.node.name, "it gave no answer")
            hosts.append(heard.answer)
        _refuse_differences(hosts)
        yield RankHosts(hosts, ways_between(hosts))


def _look_over(line: Line, workload: Workload) -> RankHost:
    """What a host is, and that a trial can run there. Raises CannotError."""
    name = line.node.name
    if not line.ask("exists", path=sys.executable):
        raise CannotError(
            f"there is no {sys.executable} on {name}",
            hint="install the same environment at the same path there, or share its folder",
        )
    for path in _paths(workload):
        if not line.ask("exists", path=path):
            raise CannotError(
                f"there is no {path} on {name}",
                hint="the script, and the folder that it is started in, are at the same path on "
                "all hosts: copy them, or share the folder",
            )
    asked = line.run(
        Command(argv=(sys.executable, "-c", "import psutil"), timeout_seconds=LOOK_SECONDS)
    )
    if asked.returncode != 0:
        last = (asked.stderr.strip().splitlines() or ["it gave no answer"])[-1]
        raise CannotError(f"{sys.executable} on {name}: {last}", hint="pip install psutil there")
    return RankHost(
        name=name,
        facts=probe(FarHost(line)),
        line=line,
        root=send_modules(line),
        own=line.ask("process_itself")["environment"],
    )


def _paths(workload: Workload) -> Iterator[str]:
    """What a trial needs to find on every host."""
    yield os.getcwd()
    script = script_file(workload.argv) if workload.recipe is None else None
    if script is not None:
        yield os.path.abspath(script)


def _refuse_differences(hosts: Sequence[RankHost]) -> None:
    """Raise CannotError where ranks of these hosts cannot be one job."""
    first = hosts[0]
    for other in hosts[1:]:
        pairs = [
            ("processor", first.facts.cpu.architecture, other.facts.cpu.architecture),
            ("Python", _python(first), _python(other)),
            *((name, _version(first, name), _version(other, name)) for name in SAME_VERSIONS),
        ]
        for what, ours, theirs in pairs:
            if ours == theirs:
                continue
            cure = f"on {other.name}: pip install {what}=={ours}"
            if ours is None or what in ("processor", "Python"):
                cure = "tune on hosts that are alike; `cputune doctor --hosts` lists what differs"
            raise CannotError(
                f"{what} is {ours or 'not there'} on {first.name}, and "
                f"{theirs or 'not there'} on {other.name}",
                hint=cure,
            )


def _python(host: RankHost) -> str | None:
    return ".".join((host.facts.python or "").split(".")[:2]) or None


def _version(host: RankHost, name: str) -> str | None:
    package = host.facts.package(name)
    return None if package is None else package.version


def ways_between(hosts: Sequence[RankHost]) -> tuple[Way, ...]:
    """The network interfaces that lead from host to host. Raises CannotError where none does."""
    if len(hosts) < 2:
        return ()
    chosen = choose_interface([(host.name, host.facts.network) for host in hosts])
    if chosen.name is None:
        raise CannotError(
            f"no network interface leads from host to host: {chosen.why}",
            hint="`cputune doctor --hosts` says what each of them has",
        )
    names = [host.name for host in hosts]
    return tuple(
        Way(interface=interface, addresses=dict(zip(names, addresses, strict=True)))
        for interface, addresses in ((chosen.name, chosen.addresses), *chosen.others)
    )
