"""The hosts of one study, in the order in which its plans count their nodes.

They are checked before the first trial. Whatever would make every trial fail is reported at once,
with the host and what differs: a missing Python, other versions, another script or other data, no
network between them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from cputune.doctor.hosts.differences import (
    SeenHost,
    architecture,
    grouped,
    libraries,
    names_of,
    python,
    training_stack,
)
from cputune.doctor.hosts.network import Rate, judge_ports, listening, measure_rate, try_ports
from cputune.errors import CannotError, Unreachable, UsageError
from cputune.host import Interpreter
from cputune.host.facts import HostFacts
from cputune.host.remote.ask import ANSWER_SECONDS
from cputune.host.remote.named import Node, parse_distinct_hosts
from cputune.host.remote.probed import Probed, probe_each
from cputune.host.remote.reach import Reach, Ssh, find_reach
from cputune.plans.delivery.network_interface import choose_interface
from cputune.plans.plan import Plan
from cputune.plans.training_command import script_file
from cputune.plans.workload import Workload
from cputune.records.steps import Infeasible


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHosts:
    """The hosts of a study, and how they are reached.

    ``interface`` is the network interface that ranks talk on; None for one host. ``rate`` is what
    gloo reaches over it, or why that is not known; None: it was not measured.
    """

    hosts: list[Probed]
    interface: str | None = None
    rate: Rate | str | None = None
    reach: Reach = field(default_factory=Ssh)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the hosts, in the order of the plans' nodes."""
        return tuple(host.name for host in self.hosts)

    @property
    def facts(self) -> tuple[tuple[str, HostFacts], ...]:
        """The facts of each host, by its name."""
        return tuple((host.name, host.facts) for host in self.hosts)

    def of(self, plan: Plan) -> tuple[Probed, ...]:
        """The hosts that a plan runs on. Raises Infeasible if there are too few."""
        if plan.nodes > len(self.hosts):
            raise Infeasible(f"the plan is for {plan.nodes} nodes, and there are {len(self.hosts)}")
        return tuple(self.hosts[: plan.nodes])


def open_hosts(
    nodes: Sequence[Node],
    reach: Reach,
    workload: Workload,
    *,
    interpreter: Interpreter,
    seconds: float = 30.0,
) -> RankHosts:
    """Look the hosts over; nothing of ours stays on them. ``interpreter`` trains, here and
    there.

    Raises UsageError if one is named twice, Unreachable if one does not answer within
    ``seconds``, and CannotError if one cannot take part.
    """
    names: set[str] = set()
    for node in nodes:
        if node.name in names:
            raise UsageError(f"{node.name} is named twice", hint="name each host once")
        names.add(node.name)
    paths = tuple(dict.fromkeys(needed_paths(workload, interpreter)))
    other = None
    if not interpreter.is_ours:
        other = interpreter.executable
    hosts = []
    for host in probe_each(nodes, reach, seconds, python=other, content=paths):
        if not isinstance(host, Probed):
            raise host.unreachable or Unreachable(host.node.name, "it gave no answer")
        hosts.append(host)
    refuse_differences(hosts, paths, interpreter.executable)
    return RankHosts(hosts=hosts, interface=interface_between(hosts, reach, seconds), reach=reach)


def with_rate(
    hosts: RankHosts, interpreter: Interpreter, *, seconds: float = ANSWER_SECONDS
) -> RankHosts:
    """The hosts, with the rate of an all-reduce between them (``measure_rate``)."""
    if hosts.interface is None:
        return hosts
    address = next(iter(listening(hosts.hosts)[hosts.interface].values()))
    rate = measure_rate(
        hosts.hosts,
        hosts.reach,
        hosts.interface,
        address,
        seconds=seconds,
        python=interpreter.executable,
    )
    return replace(hosts, rate=rate)


def open_named(
    hosts: str | Sequence[str], workload: Workload, interpreter: Interpreter
) -> RankHosts:
    """Look over hosts that are given by name, reached as ``cputune tune --hosts`` does."""
    named = hosts if isinstance(hosts, str) else ",".join(hosts)
    return open_hosts(parse_distinct_hosts(named), find_reach(), workload, interpreter=interpreter)


def needed_paths(workload: Workload, interpreter: Interpreter) -> Iterator[str]:
    """Paths that a trial needs unchanged on every host.

    The script, the Python files next to it that it names, and the files that its arguments name.
    """
    yield os.getcwd()
    if workload.recipe is not None:
        return
    script = script_file(workload.argv, interpreter)
    if script is not None:
        yield os.path.abspath(script)
        # Any word that is a module's name counts: imports may be in functions and in strings.
        names = set(re.findall(r"\w+", script.read_text(encoding="utf-8", errors="replace")))
        for module in script.parent.glob("*.py"):
            if module.stem in names:
                yield os.path.abspath(module)
    for word in workload.argv:
        path = word.partition("=")[2] or word
        if os.path.exists(path) and not path.startswith("-"):
            yield os.path.abspath(path)


def refuse_differences(hosts: Sequence[Probed], paths: Sequence[str], python_here: str) -> None:
    """Raise CannotError if ranks of these hosts cannot be one job."""
    first = hosts[0]
    names_by_machine = grouped((host.name, host.machine) for host in hosts)
    for names in names_by_machine.values():
        if len(names) > 1:
            raise CannotError(
                f"{names_of(names)} are one machine: a second node would share its cores",
                hint="name each machine once",
            )
    for host in hosts:
        if host.python != python_here:
            raise CannotError(
                f"there is no {python_here} on {host.name}",
                hint="install the same environment at the same path there, or share its folder",
            )
        for path in paths:
            if host.content.get(path) is None:
                raise CannotError(
                    f"there is no {path} on {host.name}",
                    hint="the script, its data, and the folder that it is started in, are at the "
                    "same path on all hosts: copy them, or share the folder",
                )
            if host.content[path] != first.content[path]:
                raise CannotError(
                    f"{path} on {host.name} is another one than on {first.name}",
                    hint=f"copy it there: rsync -a {path} {host.node.login}:{path}",
                )
    compared = [
        SeenHost(node=host.node, seconds=host.seconds, facts=host.facts, python=host.python)
        for host in hosts
    ]
    for check in (architecture, python, training_stack, libraries):
        for finding in check(compared):
            raise CannotError(f"{finding.title}: {finding.evidence}", hint=finding.remedy)


def interface_between(
    hosts: Sequence[Probed], reach: Reach, seconds: float = ANSWER_SECONDS
) -> str | None:
    """The network interface that carries what ranks send from host to host; None for one host.

    Of several it is the one that GLOO_SOCKET_IFNAME names here, else the best one. ``seconds`` is
    the time limit of a host. Raises CannotError if none does, Unreachable if a host does not
    answer.
    """
    if len(hosts) < 2:
        return None
    chosen = choose_interface([(host.name, host.facts.network) for host in hosts])
    if chosen.name is None:
        raise CannotError(
            f"no network interface leads from host to host: {chosen.why}",
            hint="`cputune doctor --hosts` says what each of them has",
        )
    addresses = listening(hosts)
    reached = try_ports(hosts, reach, addresses, seconds=seconds)
    for name, reason in reached.silent.items():
        raise CannotError(
            f"the network of {name} could not be tested: {reason}",
            hint="--host-timeout gives hosts more time",
        )
    carrying = tuple(name for name in addresses if reached.carries(name))
    if carrying:
        requested = os.environ.get("GLOO_SOCKET_IFNAME")
        return requested if requested in carrying else carrying[0]
    findings = list(judge_ports(reached))
    evidence = findings[0].evidence if findings else "from host to host"
    raise CannotError(
        f"no network interface carries what ranks send: {evidence}",
        hint="`cputune doctor --hosts` says what is wrong between them",
    )
