"""Our end of a supervisor (``cputune.ranks.supervisor_main``), here or on another host."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from cputune.log import log
from cputune.ranks.messages import Gone, RankCommand, Ready, Request
from cputune.ranks.process_here import ProcessHere, SupervisorProcess
from cputune.steps import BEFORE_ITS_FIRST_STEP, TimedOut, TimeUp, TrialError

if TYPE_CHECKING:
    from cputune.ranks.listen import Post
    from cputune.ranks.work_folder import WorkFolder

HARMLESS_THREADS = frozenset({"jemalloc_bg_thd"})
"""Threads that know what a fork is: jemalloc stops and restarts its own around it."""

READY_SECONDS = 600.0
"""A cold import of torch and transformers from a network disk takes minutes."""

GONE_SECONDS = 30.0
GOODBYE_SECONDS = 10.0

Start = Callable[[Mapping[str, str], Sequence[str], "WorkFolder"], SupervisorProcess]
"""Starts a supervisor's process, with these variables and these modules to import."""


class Supervisor:
    """One supervisor; ``fork`` is whether its ranks can be forks of it."""

    def __init__(
        self,
        environment: Mapping[str, str],
        modules: Sequence[str],
        work: WorkFolder,
        start: Start = ProcessHere,
    ) -> None:
        self.post: Post | None = None
        self.modules = tuple(modules)
        self.fork = False
        self.unsafe_threads: tuple[str, ...] = ()
        self.process = start(environment, modules, work)
        self.socket = self.process.socket

    def join(self, post: Post, most_seconds: float = math.inf) -> None:
        """Wait until it is ready, as ``join_all`` does."""
        join_all((self,), post, most_seconds)

    def start(
        self,
        commands: Sequence[RankCommand],
        *,
        mark: tuple[str, str] | None = None,
        scratch: str | None = None,
    ) -> None:
        """Start the ranks of one plan, or the launchers that start them (see ``Start``)."""
        log.getChild("ranks").debug("%d processes start below a supervisor", len(commands))
        self.send({"do": "start", "commands": list(commands), "mark": mark, "scratch": scratch})

    def free_port(self) -> int:
        """A free port of its machine, which it holds until it has started the next ranks.

        Raises TrialError where it has died.
        """
        self.send({"do": "port"})
        return int(await_all((self,), "port", GONE_SECONDS)[self]["port"])

    def end(self, grace_seconds: float) -> dict[str, str]:
        """End its ranks, as ``end_all`` does; the tail of what each wrote, by its number."""
        return end_all((self,), grace_seconds)[0]

    def stop_ranks(self) -> None:
        """Stop all that it has started (see ``SupervisorProcess``)."""
        self.process.stop_below()

    def continue_ranks(self) -> None:
        """Let what was stopped run again."""
        self.process.continue_below()

    @property
    def alive(self) -> bool:
        """Whether it can start another plan."""
        return self.process.alive

    def kill(self) -> None:
        """The last resort, where it does not answer: end it, and what is below it."""
        self.process.kill()

    def close(self) -> None:
        """Say goodbye; it ends whatever still runs."""
        if self.post is not None:
            self.post.remove(self.socket)
        with contextlib.suppress(OSError):
            self.send({"do": "goodbye"})
        self.socket.close()
        self.continue_ranks()
        if not self.process.wait(GOODBYE_SECONDS):
            self.kill()
            self.process.wait(0)

    def said(self) -> str:
        """The tail of what it wrote to its log."""
        return self.process.said()

    def died(self) -> TrialError:
        """The error to raise where its line has been closed; nothing stays stopped."""
        self.process.kill_stopped()
        return self.process.died()

    def send(self, request: Request) -> None:
        """Say something to it. Raises OSError where it is gone."""
        self.socket.setblocking(True)
        try:
            self.socket.sendall(json.dumps(request).encode() + b"\n")
        finally:
            self.socket.setblocking(False)


def join_all(supervisors: Sequence[Supervisor], post: Post, most_seconds: float = math.inf) -> None:
    """Wait until all are ready, which they become side by side.

    Raises Crashed where the training stack cannot be loaded, TimeUp after ``most_seconds``.
    """
    for supervisor in supervisors:
        supervisor.post = post
        post.add(supervisor.socket, supervisor)
    try:
        told = await_all(supervisors, "ready", min(READY_SECONDS, most_seconds))
    except TimedOut:
        if most_seconds < READY_SECONDS:
            modules = supervisors[0].modules
            during = f"while importing {names_of(modules)}"
            raise TimeUp(during if modules else BEFORE_ITS_FIRST_STEP) from None
        raise
    for supervisor, ready in told.items():
        threads = cast(Ready, ready)["threads"]
        supervisor.unsafe_threads = tuple(set(threads) - HARMLESS_THREADS)
        supervisor.fork = bool(supervisor.modules) and not supervisor.unsafe_threads


def end_all(supervisors: Sequence[Supervisor], grace_seconds: float) -> list[dict[str, str]]:
    """End all ranks of all and everything they started, and wait until they are gone.

    Gives the tails of what the ranks of each wrote, by their numbers there. One that has died,
    or does not answer, is killed, and tells nothing.
    """
    asked = []
    for supervisor in supervisors:
        supervisor.continue_ranks()
        try:
            supervisor.send({"do": "end", "grace_seconds": grace_seconds})
            asked.append(supervisor)
        except OSError:
            supervisor.kill()
    tails: dict[Supervisor, dict[str, str]] = {}
    seconds = GONE_SECONDS + 2 * grace_seconds
    for supervisor, answer in await_each(asked, "gone", seconds).items():
        if isinstance(answer, TrialError):
            supervisor.kill()
        else:
            tails[supervisor] = cast(Gone, answer)["tails"]
    return [tails.get(supervisor, {}) for supervisor in supervisors]


def await_all(
    supervisors: Sequence[Supervisor], event: str, seconds: float
) -> dict[Supervisor, dict[str, Any]]:
    """What each says of this event. Raises what the first of them fails by."""
    told = await_each(supervisors, event, seconds, first_failure=True)
    for answer in told.values():
        if isinstance(answer, TrialError):
            raise answer
    return cast("dict[Supervisor, dict[str, Any]]", told)


def await_each(
    supervisors: Sequence[Supervisor], event: str, seconds: float, *, first_failure: bool = False
) -> dict[Supervisor, dict[str, Any] | TrialError]:
    """What each says of this event; the error where it died, or did not say it in time.

    ``first_failure``: nobody is waited for where one has failed.
    """
    deadline = time.monotonic() + seconds
    told: dict[Supervisor, dict[str, Any] | TrialError] = {}
    while len(told) < len(supervisors) and (left := deadline - time.monotonic()) > 0:
        post = supervisors[0].post
        assert post is not None, "it was joined"
        for source, message in post.wait(left):
            if source not in supervisors or source in told:
                continue
            if message is None:
                told[source] = source.died()
                if first_failure:
                    return told
            elif message["event"] == event:
                told[source] = message
    for supervisor in supervisors:
        if supervisor not in told:
            told[supervisor] = TimedOut(
                f"the process that starts the ranks was not {event} in {seconds:.0f} s"
            )
    return told


def names_of(modules: Sequence[str]) -> str:
    """The packages of these modules, each once."""
    return ", ".join(dict.fromkeys(m.split(".")[0] for m in modules))
