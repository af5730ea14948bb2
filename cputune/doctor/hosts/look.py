"""Looking at several hosts side by side: each through a line, with a limit of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from cputune.doctor import diagnose
from cputune.doctor.configured import configured_findings
from cputune.doctor.finding import Finding, Severity, by_severity
from cputune.doctor.hosts.around import unreachable
from cputune.doctor.hosts.asking import NOT_ASKED
from cputune.doctor.hosts.registry import CHECKS, DEEP, LIVE, LiveCheck
from cputune.doctor.hosts.seen import HostsDiagnosis, SeenHost, names_of
from cputune.errors import Unreachable, UsageError
from cputune.nodes.far_host import FarHost
from cputune.nodes.line import OPEN_SECONDS, Line
from cputune.nodes.many import AT_ONCE, Heard, Lines, on_each
from cputune.nodes.named import Node
from cputune.nodes.reach import Reach
from cputune.probing import probe

CLOCK_LOOKS = 5
"""Of so many answers the quickest one tells the clock: half its time is the uncertainty."""

MOST_FILES = 500
"""Of a launch; a folder with more is named too high."""

_NO_PART = frozenset({"__pycache__", ".git"})


def look_at_hosts(
    nodes: Sequence[Node],
    reach: Reach,
    *,
    seconds: float = OPEN_SECONDS,
    python: str | None = None,
    launch: str | None = None,
    deep: bool = False,
    on_seen: Callable[[SeenHost], None] = lambda host: None,
) -> HostsDiagnosis:
    """Look at each host for ``seconds`` at most, then at what differs between them.

    Args:
        nodes: the hosts, each once; the first is where ranks will meet.
        reach: how they are reached.
        seconds: for each host; one that does not answer in time is a finding.
        python: the interpreter that trains, where it is not ours; the same path everywhere.
        launch: a script, or the folder of a launch, that must be the same everywhere.
        deep: also what starts processes that communicate.
        on_seen: is called with each host as it is seen, from several threads.
    """
    paths = () if launch is None else launch_paths(launch)

    def see(line: Line) -> SeenHost:
        host = _see(line, python, paths)
        on_seen(host)
        return host

    with Lines() as lines:
        # What is asked of hosts together needs all lines at once: too many for thousands.
        live = lines if len(nodes) <= AT_ONCE else None
        hosts = tuple(map(_seen, on_each(nodes, reach, see, seconds, keep=live)))
        pairs = [(host, line) for host in hosts if (line := lines.to(host.node)) is not None]
        together = [*LIVE, *(DEEP if deep else ())] if len(pairs) > 1 else []
        found = [finding for check in together for finding in _asked_together(check, pairs)]
    if len(nodes) > AT_ONCE:
        found.append(not_between(len(nodes)))
    found = [*(finding for check in CHECKS for finding in check.compare(hosts)), *found]
    return HostsDiagnosis(hosts=hosts, findings=by_severity([*found, *own_findings(hosts)]))


def _asked_together(
    check: LiveCheck, pairs: Sequence[tuple[SeenHost, Line]]
) -> tuple[Finding, ...]:
    """What one check finds; a host that is lost meanwhile is a finding, too."""
    try:
        return tuple(check(pairs))
    except Unreachable as error:
        said = f"{error.name}: {error.reason}, when it was asked together with the others"
        return (unreachable.finding(said, remedy=error.hint),)


def not_between(hosts: int) -> Finding:
    """Of so many hosts the network between is not looked at."""
    return NOT_ASKED.finding(
        f"names and ports between {hosts} hosts: more than {AT_ONCE} are not asked together",
        severity=Severity.ADVICE,
        remedy="Ask for those of one job at a time.",
    )


def own_findings(hosts: Sequence[SeenHost]) -> tuple[Finding, ...]:
    """What each host has by itself, told once for all that have it."""
    having: dict[str, list[tuple[str, Finding]]] = {}
    for host in hosts:
        for code, finding in {finding.code: finding for finding in host.findings}.items():
            having.setdefault(code, []).append((host.name, finding))
    return tuple(_told_once(those) for those in having.values())


def _told_once(those: Sequence[tuple[str, Finding]]) -> Finding:
    """The finding of the first host, and the names of the others that have it."""
    (first, finding), others = those[0], [name for name, _ in those[1:]]
    also = f" (also on {names_of(others)})" if others else ""
    return replace(finding, evidence=f"{first}: {finding.evidence}{also}")


def launch_paths(launch: str) -> tuple[str, ...]:
    """The files of a launch by their absolute paths. Raises UsageError."""
    place = Path(launch).absolute()
    if not place.exists():
        raise UsageError(
            f"there is nothing at {launch}", hint="--launch names a script, or what emit wrote"
        )
    if not place.is_dir():
        return (str(place),)
    inside = (path for path in place.rglob("*") if not _NO_PART & set(path.parts))
    files = list(islice((str(path) for path in inside if path.is_file()), MOST_FILES + 1))
    if len(files) > MOST_FILES:
        raise UsageError(
            f"{launch} holds more than {MOST_FILES} files",
            hint="name the script, or the folder of a launch",
        )
    return (str(place), *sorted(files))


def _see(line: Line, python: str | None, paths: Sequence[str]) -> SeenHost:
    """One host through its line. Raises Unreachable where what it answers makes no sense, too."""
    try:
        return _look(line, python, paths)
    except UsageError as error:  # no such Python there
        raise Unreachable(line.node.name, str(error), hint=error.hint) from error
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        said = f"what it answers makes no sense ({type(error).__name__}: {error})"
        raise Unreachable(line.node.name, said) from error


def _look(line: Line, python: str | None, paths: Sequence[str]) -> SeenHost:
    host = FarHost(line, python)
    facts = probe(host)
    offset, uncertainty = _clock(line)
    told = line.many([{"do": "content", "path": path} for path in paths]) if paths else []
    boot, network = host.itself["boot"], host.itself["network"]
    return SeenHost(
        node=line.node,
        seconds=0.0,
        facts=facts,
        clock_offset_seconds=offset,
        clock_uncertainty_seconds=uncertainty,
        python=host.executable,
        machine=f"{boot} {network}" if boot and network else None,
        launch={path: _content(one) for path, one in zip(paths, told, strict=True)},
        findings=(*diagnose(facts).findings, *configured_findings(facts, host)),
    )


def _content(told: object) -> str | None:
    if not isinstance(told, dict):
        return None
    return f"{told['bytes']} {told['sha256']}" if "sha256" in told else str(told["kind"])


def _clock(line: Line) -> tuple[float, float]:
    """How far the other clock is ahead, and how far that may be wrong, in seconds."""
    looks = []
    for _ in range(CLOCK_LOOKS):
        before = time.time()
        theirs = float(line.ask("clock"))
        after = time.time()
        looks.append((after - before, theirs - (before + after) / 2))
    took, offset = min(looks)
    return offset, took / 2


def _seen(heard: Heard[SeenHost]) -> SeenHost:
    if heard.answer is not None:
        return replace(heard.answer, seconds=heard.seconds)
    assert heard.unreachable is not None
    error = heard.unreachable
    return SeenHost(node=heard.node, seconds=heard.seconds, reason=error.reason, cure=error.hint)
