"""One launch from start to end: starts it, reads what its ranks say, ends it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from cputune.inside.messages import Ended, Profiled, Raised, RankMessage, RankState
from cputune.ranks.failure import early_end, failure
from cputune.ranks.gather import Gather, of_rank
from cputune.ranks.idle import IdleWatch, Patience
from cputune.ranks.listen import Post
from cputune.ranks.messages import Exit, RankCommand
from cputune.ranks.supervisor import Supervisor, end_all
from cputune.steps import (
    BEFORE_ITS_FIRST_STEP,
    Crashed,
    Infeasible,
    Step,
    TimedOut,
    TimeUp,
    TrialError,
)

LAST_WORDS_SECONDS = 1.0
"""When one rank has failed, the others soon fail too, because it is gone. The job is heard so
much longer before it is judged, so that the rank that failed first is among those heard."""

TRACEBACK_SECONDS = 10.0
"""A rank that has raised still writes its traceback and ends; on a busy machine that takes time."""

SMALLEST_STEP_TIMEOUT = 60.0
SLOWER_THAN_BEFORE = 20.0
"""A step may take so many times as long as the slowest one before it; one busy neighbour
alone makes it 9 times as long."""


class Job:
    """The processes of one launch, on one machine or on several.

    Attributes:
        states: what each rank really runs with, as it said at its first step.
        ranks: the steps of each rank.
        exits: of the processes that were started here, in the order of their ends.
        errors: exceptions that scripts raised, with the rank.
        refusals: why a rank could not run as asked.
        ends: scripts that came to their own end.
        waits: the share of each step of each rank that it waited for its data.
        profiles: where the time of each rank went, where that was asked for.
    """

    def __init__(
        self,
        supervisors: Supervisor | Sequence[Supervisor],
        post: Post,
        *,
        ranks: int,
        grace_seconds: float,
        in_turns: bool = False,
        on_note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``supervisors`` start the ranks: one for each machine, in the order of the ranks."""
        self._supervisors = (
            (supervisors,) if isinstance(supervisors, Supervisor) else tuple(supervisors)
        )
        self._each = 0
        self._post = post
        self._world = ranks
        self._grace_seconds = grace_seconds
        self._on_note = on_note
        self._gather = Gather(ranks)
        self._started = 0
        self._ended = False
        self._hopeless = False
        self._slowest = 0.0
        self._memory_kills = self._kernel_kills()
        self._in_turns = in_turns
        self._allowed = 1
        self._wanted = 1
        self.states: dict[int, RankState] = {}
        self.ranks: dict[int, list[Step]] = {}
        self.exits: list[Exit] = []
        self.errors: list[tuple[int, Raised]] = []
        self.refusals: dict[int, str] = {}
        self.ends: list[Ended] = []
        self.profiles: dict[int, Profiled] = {}
        self.waits: list[float] = []

    def start(
        self,
        commands: Sequence[RankCommand],
        *,
        mark: tuple[str, str] | None = None,
        scratch: Sequence[str] = (),
    ) -> None:
        """Start the ranks, or the launchers that start them: as many on each machine.

        ``scratch`` is a folder of each machine that is empty for them (see ``messages.Start``).
        """
        self._post.drop_ranks()
        self._started = len(commands)
        self._each = each = len(commands) // len(self._supervisors)
        for place, supervisor in enumerate(self._supervisors):
            supervisor.start(
                commands[place * each : (place + 1) * each],
                mark=mark,
                scratch=scratch[place] if scratch else None,
            )

    def turn(self, steps: int) -> None:
        """Of a job in turns: so many steps are about to be read, then it is let take none.

        The start-up and the first step need no leave.
        """
        self._wanted = steps

    def stand_still(self) -> None:
        """Stop every process of the launch, until ``go_on`` (see ``SupervisorProcess``)."""
        for supervisor in self._supervisors:
            supervisor.stop_ranks()

    def go_on(self) -> None:
        """Let the processes run again."""
        for supervisor in self._supervisors:
            supervisor.continue_ranks()

    def hear(self, seconds: float) -> list[Step]:
        """Wait for ``seconds`` at most until somebody speaks; the steps of the job that came of it.

        Raises Crashed where a supervisor has died, or a rank talks nonsense, and HostLost.
        """
        return self._take(self._post.wait(max(0.0, seconds)))

    def hear_out(self, seconds: float) -> list[Step]:
        """Listen for ``seconds`` at most until every process has ended, then to what is left."""
        deadline = time.monotonic() + seconds
        steps: list[Step] = []
        while not self.is_over and (left := deadline - time.monotonic()) > 0:
            steps += self.hear(left)
        while heard := self._post.wait(0.0):
            steps += self._take(heard)
        return steps

    @property
    def is_over(self) -> bool:
        """Whether every process that was started here has ended."""
        return len(self.exits) >= self._started

    def steps(
        self,
        check: Callable[[Sequence[RankState]], None],
        script: str,
        patience: Patience,
        seconds_left: Callable[[], float] = lambda: math.inf,
    ) -> Iterator[Step]:
        """The steps of the job; ``check`` sees the state of all ranks before the first one.

        Raises TrialError where the job fails, hangs or ends, and TimeUp where nothing is left
        of the time: once there are steps, for another one that is no slower.
        """
        idle = IdleWatch(self._cpu_seconds, patience.idle)
        waited_since = time.monotonic()
        checked = False
        held: list[Step] = []
        while True:
            self._allow_what_is_wanted()
            left = waited_since + self._longest(patience) - time.monotonic()
            if left <= 0:
                raise self._timed_out(f"no first step in {patience.startup:.0f} s", patience)
            time_left = seconds_left() + self._slowest
            if time_left <= 0:
                raise TimeUp(BEFORE_ITS_FIRST_STEP)
            left = min(left, time_left)
            if self._gather.count == 0:
                if idle.hangs:
                    raise self._timed_out(
                        f"no first step, and nothing was computed for {patience.idle:.0f} s",
                        patience,
                    )
                left = min(left, idle.next_look_seconds)
            for step in self.hear(left):
                held.append(step)
                self._slowest = max(self._slowest, step.seconds)
                waited_since = time.monotonic()
            for refusal in self.refusals.values():
                raise Infeasible(refusal, hopeless=self._hopeless)
            if not checked and len(self.states) == self._world:
                check(self.observed)
                checked = True
            while checked and held:
                self._wanted -= 1
                yield held.pop(0)
                self._allow_what_is_wanted()
                waited_since = time.monotonic()
            if self.exits or self.errors or self.ends:
                self._hear_last_words()
                raise self._over(script)

    def _allow_what_is_wanted(self) -> None:
        """Let the ranks take what is wanted of this turn, once they have taken all they may.

        A step that the job passes over (a short last batch) is made up for.
        """
        if self._in_turns and self._wanted > 0 and self._gather.count >= self._allowed:
            self._post.tell_ranks({"steps": self._wanted})
            self._allowed += self._wanted

    @property
    def observed(self) -> tuple[RankState, ...]:
        """What the ranks saw, in their order."""
        return tuple(self.states[rank] for rank in sorted(self.states))

    def end(self) -> dict[str, str]:
        """End every process and all that they started; the tail of what each wrote."""
        if self._ended:
            return {}
        self._ended = True
        tails = end_all(self._supervisors, self._grace_seconds)
        self._post.drop_ranks()
        return {
            str(place * self._each + int(number)): tail
            for place, of_machine in enumerate(tails)
            for number, tail in of_machine.items()
        }

    def _take(self, heard: Sequence[tuple[object, object]]) -> list[Step]:
        steps = []
        for source, message in heard:
            if isinstance(source, Supervisor):
                self._hear_supervisor(source, message)
            elif isinstance(source, int) and message is not None:
                try:
                    step = self._hear_rank(source, cast(RankMessage, message))
                except (KeyError, TypeError, ValueError) as error:
                    raise Crashed(f"rank {source} says what cannot be understood") from error
                steps += [] if step is None else [step]
        return steps

    def _hear_supervisor(self, supervisor: Supervisor, message: object) -> None:
        if supervisor not in self._supervisors:
            return  # it is kept for another plan
        if message is None:
            raise supervisor.died()
        answer = cast(Exit, message)
        if answer["event"] == "exit":
            answer["rank"] += self._supervisors.index(supervisor) * self._each
            self.exits.append(answer)

    def _cpu_seconds(self) -> float | None:
        return _sum(supervisor.process.cpu_seconds() for supervisor in self._supervisors)

    def _kernel_kills(self) -> int | None:
        total = _sum(supervisor.process.memory_kills() for supervisor in self._supervisors)
        return None if total is None else int(total)

    def _hear_rank(self, rank: int, message: RankMessage) -> Step | None:
        if message["event"] == "step":
            step = of_rank(message)
            self.waits.append(float(message.get("waited") or 0.0) / max(step.seconds, 1e-9))
            self.ranks.setdefault(rank, []).append(step)
            return self._gather.add(rank, int(message["number"]), step)
        if message["event"] == "state":
            message["local_rank"] = rank
            self.states[rank] = message
        elif message["event"] == "profile":
            self.profiles[rank] = message
        elif message["event"] == "refused":
            self.refusals[rank] = str(message["reason"])
            self._hopeless = self._hopeless or bool(message.get("hopeless"))
        elif message["event"] == "note":
            self._on_note(str(message["text"]))
        elif message["event"] == "error":
            self.errors.append((rank, message))
        elif message["event"] == "end":
            self.ends.append(message)
        return None

    def _hear_last_words(self) -> None:
        deadline = time.monotonic() + TRACEBACK_SECONDS
        while self.errors and not self.exits and (left := deadline - time.monotonic()) > 0:
            self.hear(left)
        self.hear_out(LAST_WORDS_SECONDS)

    def _longest(self, patience: Patience) -> float:
        if self._gather.count == 0:
            return patience.startup
        if patience.step is not None:
            return patience.step
        return max(SMALLEST_STEP_TIMEOUT, SLOWER_THAN_BEFORE * self._slowest)

    def _timed_out(self, reason: str, patience: Patience) -> TimedOut:
        tails = self.end()
        silent = sorted(set(range(self._world)) - set(self.states))
        if self._gather.count:
            reason = f"no step for {self._longest(patience):.0f} s after {self._gather.count} steps"
        elif self.states and silent:
            reason += f" of rank {', '.join(map(str, silent))}"
        return TimedOut(reason, details=next((t for t in tails.values() if t.strip()), None))

    def _over(self, script: str) -> TrialError:
        failed = self.errors or any(exit_["status"] != 0 for exit_ in self.exits)
        if self.ends and not failed:
            seen = sorted({name for end in self.ends for name in end["seen"]})
            return early_end(seen, script, self._gather.count)
        before, now = self._memory_kills, self._kernel_kills()
        return failure(
            self.exits,
            [raised for _, raised in self.errors],
            memory_kills=None if now is None or before is None else now - before,
            steps=self._gather.count,
            script=script,
        )


def _sum(numbers: Iterable[float | None]) -> float | None:
    """Their sum; None where one of them is not known."""
    total = 0.0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
