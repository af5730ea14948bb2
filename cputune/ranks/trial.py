"""One plan from start to end: reads what its ranks say, and blocks while they work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cputune.plan import Plan
from cputune.ranks import judge
from cputune.ranks.gather import Gather
from cputune.ranks.idle import IdleWatch
from cputune.ranks.keeper import Keeper
from cputune.ranks.launch import held_port
from cputune.ranks.listen import Post
from cputune.steps import Crashed, Infeasible, Step, TimedOut

LAST_WORDS_SECONDS = 1.0
"""When one rank fails the others soon do too, of that: so long the first cause is waited for."""

SMALLEST_STEP_TIMEOUT = 60.0
SLOWER_THAN_BEFORE = 20.0
"""A step may take so many times as long as the slowest one before it; one busy neighbour
alone makes it 9 times as long."""


class Trial:
    """The ranks of one plan, running."""

    def __init__(
        self,
        keeper: Keeper,
        post: Post,
        plan: Plan,
        *,
        script: str,
        startup_seconds: float,
        step_seconds: float | None,
        idle_seconds: float,
        grace_seconds: float,
        on_note: Callable[[str], None],
    ) -> None:
        self._keeper = keeper
        self._post = post
        self._plan = plan
        self._script = script
        self._startup_seconds = startup_seconds
        self._step_seconds = step_seconds
        self._idle_seconds = idle_seconds
        self._grace_seconds = grace_seconds
        self._on_note = on_note
        self._gather = Gather(plan.processes_per_node)
        self._exits: list[Mapping[str, Any]] = []
        self._errors: list[Mapping[str, Any]] = []
        self._ends: list[Mapping[str, Any]] = []
        self._slowest = 0.0
        self._ended = False
        self._memory_kills = memory_kills()
        self._port_holder = held_port()
        self.port = int(self._port_holder.getsockname()[1])
        self.states: dict[int, dict[str, Any]] = {}

    def start(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Have the keeper start them."""
        self._post.drop_ranks()
        self._keeper.start(ranks)
        self._idle = IdleWatch(self._keeper.pid, self._idle_seconds)

    def steps(self, check: Callable[[Sequence[Mapping[str, Any]]], None]) -> Iterator[Step]:
        """The steps of the job; ``check`` sees the state of all ranks before the first one.

        Raises TrialError where the job fails, hangs or ends.
        """
        waited_since = time.monotonic()
        checked = False
        held: list[Step] = []
        while True:
            left = waited_since + self._patience() - time.monotonic()
            if left <= 0:
                raise self._timed_out(f"no first step in {self._startup_seconds:.0f} s")
            if self._gather.count == 0:
                if self._idle.hangs:
                    raise self._timed_out(
                        f"no first step, and nothing was computed for {self._idle_seconds:.0f} s"
                    )
                left = min(left, self._idle.next_look_seconds)
            for source, event in self._post.wait(left):
                step = self._hear(source, event)
                if step is not None:
                    held.append(step)
                    self._slowest = max(self._slowest, step.seconds)
                    waited_since = time.monotonic()
            if not checked and len(self.states) == self._plan.processes_per_node:
                check(self.observed)
                checked = True
            while checked and held:
                yield held.pop(0)
                waited_since = time.monotonic()
            if self._exits or self._errors or self._ends:
                self._hear_last_words()
                raise self._over()

    @property
    def observed(self) -> tuple[dict[str, Any], ...]:
        """What the ranks saw, in their order."""
        return tuple(self.states[rank] for rank in sorted(self.states))

    def end(self) -> dict[str, str]:
        """End every rank and all that they started."""
        if self._ended:
            return {}
        self._ended = True
        self._port_holder.close()
        tails = self._keeper.end(self._grace_seconds)
        self._post.drop_ranks()
        return tails

    def _hear(self, source: Any, event: dict[str, Any] | None) -> Step | None:
        if event is None:
            if source is self._keeper:
                raise Crashed(
                    "the process that starts the ranks died", details=self._keeper.said() or None
                )
            return None
        kind = event["event"]
        if kind == "step":
            return self._gather.add(source, event)
        if kind == "state":
            self.states[source] = {**event, "local_rank": source}
        elif kind == "refused":
            raise Infeasible(str(event["reason"]))
        elif kind == "note":
            self._on_note(str(event["text"]))
        elif kind == "error":
            self._errors.append(event)
        elif kind == "exit":
            self._exits.append(event)
        elif kind == "end":
            self._ends.append(event)
        return None

    def _patience(self) -> float:
        if self._gather.count == 0:
            return self._startup_seconds
        if self._step_seconds is not None:
            return self._step_seconds
        return max(SMALLEST_STEP_TIMEOUT, SLOWER_THAN_BEFORE * self._slowest)

    def _timed_out(self, reason: str) -> TimedOut:
        tails = self.end()
        silent = sorted(set(range(self._plan.processes_per_node)) - set(self.states))
        if self._gather.count:
            reason = f"no step for {self._patience():.0f} s after {self._gather.count} steps"
        elif self.states and silent:
            reason += f" of rank {', '.join(map(str, silent))}"
        return TimedOut(reason, details=next((t for t in tails.values() if t.strip()), None))

    def _hear_last_words(self) -> None:
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while len(self._exits) < self._plan.processes_per_node:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            for source, event in self._post.wait(left):
                self._hear(source, event)

    def _over(self) -> Exception:
        failed = self._errors or any(event["status"] != 0 for event in self._exits)
        if self._ends and not failed:
            seen = sorted({name for event in self._ends for name in event["seen"]})
            return judge.early_end(seen, self._script, self._gather.count)
        kills = memory_kills()
        return judge.failure(
            self._exits,
            self._errors,
            memory_kills=(
                None if kills is None or self._memory_kills is None else kills - self._memory_kills
            ),
            steps=self._gather.count,
            script=self._script,
        )


def memory_kills() -> int | None:
    """How often the kernel has killed for memory since it booted; control groups included."""
    with (
        contextlib.suppress(OSError, ValueError),
        open("/proc/vmstat", encoding="ascii") as file,
    ):
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None
