"""Asking all hosts at once, by a script that is sent over as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

from cputune.doctor.finding import Finding, Severity
from cputune.doctor.hosts.seen import HostsCheck
from cputune.errors import CannotError
from cputune.facts import HostFacts
from cputune.host import Command, Completed

NOT_ASKED = HostsCheck(
    code="hosts-not-asked",
    severity=Severity.WARNING,
    title="A look at the network between the hosts could not be taken",
    remedy="Mend what the host says, and ask again.",
    source="https://docs.python.org/3/library/socket.html",
    story="""What is not known is not said to be in order: a script that was sent to this host
did not end, or did not answer.""",
)


class Door(Protocol):
    """What starts programs on a host: a ``cputune.nodes.line.Line``."""

    @property
    def python(self) -> str:
        """An interpreter there."""

    def run(self, command: Command) -> Completed:
        """Run a program there to its end. Raises OSError, or Unreachable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A host that answers, and what is known of it; ``python`` is what trains there."""

    name: str
    facts: HostFacts
    door: Door
    python: str | None = None


def side_by_side(
    hosts: Sequence[Asked],
    script: str,
    question: Callable[[Asked], Mapping[str, Any]],
    seconds: float,
    *,
    trains: bool = False,
    sourced: Callable[[Asked], str] | None = None,
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """The answers of a script by host, all asked at once; a finding for each that has none.

    ``trains``: the script needs the Python that trains. ``sourced``: a file of shell that brings
    the libraries it needs.
    """
    text = resources.files("cputune.doctor.looks").joinpath(script).read_text(encoding="utf-8")

    def ask(one: Asked) -> Completed | str:
        python = one.python if trains and one.python else one.door.python
        argv: tuple[str, ...] = (python, "-c", text, json.dumps(question(one)))
        if sourced is not None:
            argv = ("bash", "-c", 'source "$0" >/dev/null && exec "$@"', sourced(one), *argv)
        try:
            return one.door.run(Command(argv=argv, timeout_seconds=seconds))
        except (OSError, CannotError) as error:
            return str(error)

    with ThreadPoolExecutor(max_workers=max(1, len(hosts))) as pool:
        done = dict(zip((one.name for one in hosts), pool.map(ask, hosts), strict=True))
    answers, silent = {}, []
    for name, came in done.items():
        told = came if isinstance(came, str) else _told(came)
        if isinstance(told, str):
            silent.append(NOT_ASKED.finding(f"{script.removesuffix('.py')} on {name}: {told}"))
        else:
            answers[name] = told
    return answers, tuple(silent)


def _told(done: Completed) -> dict[str, Any] | str:
    """The line of JSON that a script has printed; how it ended where it printed none."""
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            try:
                told = json.loads(line)
            except ValueError:
                break
            if isinstance(told, dict):
                return told
    if done.returncode is None:
        return f"it did not end in {done.seconds:.0f} s"
    last = [line.strip() for line in done.stderr.splitlines() if line.strip()][-1:]
    return f"it ended with {done.returncode}" + "".join(f": {line[:300]}" for line in last)
