"""What a measurement needs: the machine to itself, and a runner of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

from cputune.host import LiveHost
from cputune.host.facts import HostFacts
from cputune.host.locks import measuring_lock
from cputune.plans.workload import Workload
from cputune.ranks.hosts import RankHosts
from cputune.records.steps import Runner
from cputune.text.plain import visible
from cputune.tuner.events import Message, OnEvent, waiting_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Other processes that use the CPUs of this machine, the busiest first.

    ``look`` returns those of the next half second; none of our processes may run meanwhile.
    """

    at_start: tuple[str, ...] = ()
    look: Callable[[], tuple[str, ...]] = tuple

    def still_there(self) -> tuple[str, ...]:
        """Those that compute now, if there were some at the start too."""
        if self.at_start:
            return self.look()
        return ()


@contextmanager
def measuring_alone(
    on_event: OnEvent, *, share: bool, until: float | None, real: bool, look: bool
) -> Iterator[Neighbours]:
    """Wait until no other tuner measures here; yields the other processes that compute.

    ``share``: do not wait. ``real``: processes are started, so the machine is needed. ``look``:
    look for other processes; not with a simulating runner or on other hosts.
    """

    def wait_for(owner: str) -> None:
        on_event(Message(text=waiting_for(owner), warns=True))

    with ExitStack() as held:
        if real and not share:
            held.enter_context(measuring_lock(wait_for, until=until))
        if look:
            looks = _who_computes_here()
        else:
            looks = tuple
        busy = looks()
        if busy and not share:
            names = visible("; ".join(busy))
            text = f"warning: the machine is busy, speeds may be wrong: {names}"
            on_event(Message(text=text, warns=True))
        yield Neighbours(at_start=busy, look=looks)


def _who_computes_here() -> Callable[[], tuple[str, ...]]:
    from cputune.host.probing.load import look_around

    host = LiveHost()
    return lambda: look_around(host)


def open_runner(
    runner: Runner | None,
    workload: Workload,
    facts: HostFacts,
    on_event: OnEvent,
    *,
    fresh: bool,
    hosts: RankHosts | None = None,
) -> AbstractContextManager[Runner]:
    """The given runner, or one of real processes; ``fresh`` ones start anew each time."""
    if runner is not None:
        return nullcontext(runner)
    from cputune.ranks.runner import ProcessRunner

    def note(text: str) -> None:
        on_event(Message(text=text))

    return ProcessRunner(workload, facts, hosts=hosts, fresh=fresh, on_note=note)
