"""One launch from start to end: starts it, reads what its ranks say, ends it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from cputune.equivalence import Training, training_of
from cputune.hidden import without_secrets
from cputune.inside.messages import (
    Ended,
    Profiled,
    Raised,
    RankMessage,
    RankState,
    StepMessage,
    Trained,
)
from cputune.ranks.compare import global_batch
from cputune.ranks.engines import Engine, Launch
from cputune.ranks.failure import early_end, failure
from cputune.ranks.listen import Post
from cputune.ranks.messages import Exit, RankCommand
from cputune.ranks.supervisor import Supervisor, kernel_kills
from cputune.ranks.supervisor_main import TAIL_BYTES
from cputune.steps import (
    BEFORE_ITS_FIRST_STEP,
    Crashed,
    HostLost,
    Infeasible,
    Step,
    TimedOut,
    TimeUp,
    TrialError,
)

LAST_WORDS_SECONDS = 1.0
"""When one rank has failed, the others soon fail too, because it is gone. The job is listened to
for so much longer, so that the rank that failed first is among those that were heard."""

TRACEBACK_SECONDS = 10.0
"""A rank that has raised an exception still writes its traceback and ends. On a busy machine that
takes time."""

MOST_WORDS = 2000
"""How many characters of a failing script's output are kept."""

LOOK_SECONDS = 1.0
"""How often a launch over hosts looks whether it has time left; the search may have ended."""

LONG_STEP_SECONDS = 3.0
AHEAD_SECONDS, MOST_AHEAD = 0.05, 64
"""Ranks that run on may take several steps without asking: as many as fill these seconds, and at
most so many."""

TWICE = "each was started as a job of its own, or the launcher numbers them alike"

SMALLEST_STEP_TIMEOUT = 60.0
SLOWER_THAN_BEFORE = 20.0
"""The patience with a step, over the slowest one before it. One busy process beside it can make a
step 9 times as long."""


class Job:
    """The processes of one launch, on one machine or on several.

    Of a launch over hosts, only the first commands run here. What its ranks use and who
    ends them there is not seen from here, and they stand still by waiting for their turn.

    Attributes:
        states: what each rank really runs with, as it said at its first step.
        ranks: the steps of each rank.
        exits: of the processes that were started here, in the order of their ends.
        errors: exceptions that scripts raised, with the rank.
        refusals: why a rank could not run as asked.
        ends: scripts that came to their own end.
        trained: what each rank told of its first steps.
        waits: the share of each step of each rank that it waited for its data.
        profiles: where the time of each rank went, where that was asked for.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        post: Post,
        *,
        ranks: int,
        grace_seconds: float,
        in_turns: bool = False,
        hosts: Sequence[str] = (),
        on_note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``hosts`` are the other hosts on which the ranks run, in order; none: this machine."""
        self._supervisor = supervisor
        self._hosts = tuple(hosts)
        self._post = post
        self._world = ranks
        self._grace_seconds = grace_seconds
        self._on_note = on_note
        self.clean: Callable[[str], str] = lambda text: without_secrets(text, os.environ)
        self._engine: tuple[Engine, Launch] | None = None
        self._gather = Gather(ranks)
        self._started = 0
        self._ended = False
        self._hopeless = False
        self._slowest = 0.0
        self._quickest = math.inf
        self._memory_kills = kernel_kills()
        self._in_turns = in_turns
        self._allowed = 1
        self._wanted = 1
        self._runs_on = False
        self._held: list[Step] = []
        self._to_profile = 0
        self.states: dict[int, RankState] = {}
        self.ranks: dict[int, list[Step]] = {}
        self.exits: list[Exit] = []
        self.errors: list[tuple[int, Raised]] = []
        self.refusals: dict[int, str] = {}
        self.ends: list[Ended] = []
        self.profiles: dict[int, Profiled] = {}
        self.waits: list[float] = []
        self.trained: dict[int, list[Trained]] = {}
        self._speaking: dict[int, int] = {}
        """The process of each rank that is heard now."""

    def launch(self, engine: Engine, launch: Launch) -> None:
        """Start the plan by its engine, which later says what it waits for and why it has ended."""
        self._engine = engine, launch
        self.start(engine.start(launch))

    def start(
        self,
        commands: Sequence[RankCommand],
        *,
        mark: tuple[str, str] | None = None,
    ) -> None:
        """Start the ranks, or the launchers that start them (``mark``: see ``messages.Start``)."""
        self._post.drop_ranks()
        self._started = len(commands)
        self._supervisor.start(commands, mark=mark)

    def turn(self, steps: int, *, profiled: int = 0) -> None:
        """Let a job take so many steps, which are about to be read, and then wait.

        The start-up and the first step need no leave. ``profiled``: in so many of the steps after
        the first one of the turn, each rank reports where the time goes.
        """
        self._wanted, self._to_profile = steps, profiled

    def run_on(self) -> None:
        """Let a job take one step after the other, until ``comes_to_rest`` is called."""
        self._runs_on = True

    def comes_to_rest(self, seconds: float) -> bool:
        """Let a job take the steps that it has leave for, unread, and no further one.

        False where it has failed, has come to its end, or takes longer than that.
        """
        self._runs_on, self._wanted = False, 0
        until = time.monotonic() + seconds
        while self._gather.count < self._allowed and self._lives:
            if (left := until - time.monotonic()) <= 0:
                return False
            self.hear(left)
        self._held.clear()
        return self._lives

    @property
    def _lives(self) -> bool:
        return not (self.exits or self.errors or self.ends or self.refusals)

    def stand_still(self) -> None:
        """Stop every process of the launch, until ``go_on`` (see ``Supervisor.stop_ranks``)."""
        if not self._hosts:
            self._supervisor.stop_ranks()

    def go_on(self) -> None:
        """Let the processes run again."""
        self._supervisor.continue_ranks()

    def hear(self, seconds: float) -> list[Step]:
        """Wait for ``seconds`` at most until somebody speaks; the job's steps now complete.

        Raises Crashed where a supervisor has died, or a rank talks nonsense, and HostLost.
        """
        return self._take(self._post.wait(max(0.0, seconds)))

    def hear_out(self, seconds: float) -> list[Step]:
        """Listen for ``seconds`` at most until every process has ended, then read what is left."""
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
        # The CPU time on other hosts is not known: they are taken to compute all the time.
        used = time.monotonic if self._hosts else self._supervisor.cpu_seconds
        idle = IdleWatch(used, patience.idle)
        waited_since = time.monotonic()
        looked, told = waited_since, ""
        checked = False
        while True:
            silent = self._hosts and len(self._speaking) < self._world
            if silent and time.monotonic() - looked >= LOOK_EVERY_SECONDS:
                # Once a rank has connected, the connection shows whether its host is there.
                now = self._waits_for() or ""
                if now not in ("", told):
                    self._on_note(f"it waits for {now}")
                looked, told = time.monotonic(), now
            self._allow_what_is_wanted()
            left = waited_since + self._longest(patience) - time.monotonic()
            if left <= 0:
                raise self._timed_out(f"no first step in {patience.startup:.0f} s", patience)
            time_left = seconds_left() + self._slowest
            if time_left <= 0:
                waits = self._waits_for()
                raise TimeUp(f"while it waited for {waits}" if waits else BEFORE_ITS_FIRST_STEP)
            left = min(left, time_left, LOOK_SECONDS if self._hosts else math.inf)
            if self._gather.count == 0:
                if idle.hangs():
                    reason = f"no first step, and nothing was computed for {patience.idle:.0f} s"
                    raise self._timed_out(reason, patience)
                left = min(left, idle.next_look_seconds)
            for step in self.hear(left):
                self._held.append(step)
                self._slowest = max(self._slowest, step.seconds)
                self._quickest = min(self._quickest, step.seconds)
                waited_since = time.monotonic()
            for refusal in self.refusals.values():
                raise Infeasible(refusal, hopeless=self._hopeless)
            if not checked and len(self.states) == self._world:
                check(self.observed)
                checked = True
            while checked and self._held:
                self._wanted -= 1
                yield self._held.pop(0)
                self._allow_what_is_wanted()
                waited_since = time.monotonic()
            if self.exits or self.errors or self.ends:
                self._hear_last_words()
                raise self._over(script)

    def _allow_what_is_wanted(self) -> None:
        """Let the ranks take the steps of this turn, once they have taken all they may.

        A step that the job does not count (a short last batch) is replaced by another one. Ranks
        that run on get leave for the next steps before they come to them, or they would wait for us
        after each step. Where steps are long this waiting is negligible, and a step ahead would be
        computed in vain.
        """
        done = self._gather.count
        if not self._in_turns or done == 0:
            return
        if self._runs_on:
            more = done + 1 + steps_ahead(self._quickest) - self._allowed
        else:
            more = self._wanted if done >= self._allowed else 0
        if more > 0:
            self._post.tell_ranks({"steps": more, "profile": self._to_profile})
            self._allowed, self._to_profile = self._allowed + more, 0

    @property
    def observed(self) -> tuple[RankState, ...]:
        """What each rank has reported, in their order."""
        return tuple(self.states[rank] for rank in sorted(self.states))

    def training(self) -> Training | None:
        """What all ranks train together, by what they reported of their first steps."""
        states = self.observed
        if len(self.trained) < self._world or len(states) < self._world:
            return None
        rounded = any(state.get("products_rounded") for state in states)
        return training_of(
            [self.trained[rank] for rank in sorted(self.trained)],
            dtype="bfloat16" if rounded else states[0].get("dtype"),
            losses=[steps[0].loss for steps in self.ranks.values() if steps],
            batch=global_batch(states),
            data=states[0].get("dataset_samples"),
        )

    def end(self) -> dict[str, str]:
        """End every process and all that they started; returns the tail of what each wrote."""
        if self._ended:
            return {}
        self._ended = True
        tails = self._supervisor.end(self._grace_seconds)
        tails = {number: self._cleaned(tail) for number, tail in tails.items()}
        self._post.drop_ranks()
        if self._engine is not None:
            self._engine[0].end(self._engine[1])
        return tails

    def _take(self, heard: Sequence[tuple[object, object]]) -> list[Step]:
        steps = []
        for source, message in heard:
            if isinstance(source, Supervisor):
                self._hear_supervisor(source, message)
            elif isinstance(source, int) and message is None:
                self._speaking.pop(source, None)
            elif isinstance(source, int):
                try:
                    step = self._hear_rank(source, cast(RankMessage, message))
                except (KeyError, TypeError, ValueError) as error:
                    raise Crashed(f"rank {source} says what cannot be understood") from error
                steps += [] if step is None else [step]
        for rank, why in self._post.lost.items():
            if self._hosts:
                each = max(1, self._world // len(self._hosts))
                raise HostLost(self._hosts[min(rank // each, len(self._hosts) - 1)], why)
        return steps

    def _hear_supervisor(self, supervisor: Supervisor, message: object) -> None:
        if supervisor is not self._supervisor:
            return  # the supervisor is kept for another plan
        if message is None:
            raise supervisor.died()
        answer = cast(Exit, message)
        if answer["event"] == "exit":
            self.exits.append({**answer, "tail": self._cleaned(answer["tail"])})

    def _cleaned(self, text: str) -> str:
        """What a script wrote, without secrets; it is cut last, or half of one would stay."""
        return self.clean(text)[-TAIL_BYTES // 2 :]

    def _hear_rank(self, rank: int, message: RankMessage) -> Step | None:
        if message["event"] == "step":
            step = of_rank(message)
            self.waits.append(float(message.get("waited") or 0.0) / max(step.seconds, 1e-9))
            self.ranks.setdefault(rank, []).append(step)
            if told := message.get("trained"):
                self.trained.setdefault(rank, []).append(told)
            return self._gather.add(rank, int(message["number"]), step)
        if message["event"] == "hello":
            first = self._speaking.setdefault(rank, message["pid"])
            if self._hosts and first != message["pid"]:  # on one host: a child
                self.refusals[rank] = f"two processes say that they are rank {rank}: {TWICE}"
        elif message["event"] == "state":
            message["local_rank"] = rank
            self.states[rank] = message
        elif message["event"] == "profile":
            self.profiles[rank] = message
        elif message["event"] == "refused":
            self.refusals[rank] = self._cleaned(str(message["reason"]))
            self._hopeless = self._hopeless or bool(message.get("hopeless"))
        elif message["event"] == "note":
            self._on_note(str(message["text"]))
        elif message["event"] == "error":
            text = self._cleaned(str(message.get("text", "")))[:MOST_WORDS]
            self.errors.append((rank, {**message, "text": text}))
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

    def _waits_for(self) -> str | None:
        """What the engine waits for before the ranks run, in its words."""
        if len(self.states) == self._world or self._engine is None:
            return None
        engine, launch = self._engine
        return engine.watch(launch)

    def _timed_out(self, reason: str, patience: Patience) -> TimedOut:
        if waits := self._waits_for():
            reason += f": it waits for {waits}"
        tails = self.end()
        silent = sorted(set(range(self._world)) - set(self.states))
        if self._gather.count:
            reason = f"no step for {self._longest(patience):.0f} s after {self._gather.count} steps"
        elif self.states and silent:
            reason += f" of rank {', '.join(map(str, silent))}"
        return TimedOut(reason, details=next((t for t in tails.values() if t.strip()), None))

    def _over(self, script: str) -> TrialError:
        if self._engine is not None:
            engine, launch = self._engine
            known = engine.why(launch, self.exits)
            if known is not None:
                return known
        failed = self.errors or any(exit_["status"] != 0 for exit_ in self.exits)
        if self.ends and not failed:
            seen = sorted({name for end in self.ends for name in end["seen"]})
            return early_end(seen, script, self._gather.count)
        before, now = self._memory_kills, None if self._hosts else kernel_kills()
        return failure(
            self.exits,
            [raised for _, raised in self.errors],
            memory_kills=None if now is None or before is None else now - before,
            steps=self._gather.count,
            script=script,
        )


def steps_ahead(step_seconds: float) -> int:
    """How many further steps a job that runs on may take beside its present one."""
    if not step_seconds <= LONG_STEP_SECONDS:
        return 0
    return math.ceil(AHEAD_SECONDS / max(step_seconds, AHEAD_SECONDS / MOST_AHEAD))


class Gather:
    """Puts the steps of all ranks together, in order.

    A step of the job is complete when its last rank has told it. The last batch of an
    epoch may be a short one, and is passed over: its time says nothing about the others.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._open: dict[int, dict[int, Step]] = {}
        self._full = 0
        self._skipped_last = False
        self.count = 0

    def add(self, rank: int, number: int, step: Step) -> Step | None:
        """Add one rank's step. Returns the job's step where this was the last rank missing."""
        told = self._open.setdefault(number, {})
        told[rank] = step
        if len(told) < self._ranks:
            return None
        del self._open[number]
        whole = _whole(told.values())
        self.count += 1
        short = whole.samples < self._full
        self._full = max(self._full, whole.samples)
        self._skipped_last = short and not self._skipped_last
        return None if self._skipped_last else whole


def of_rank(message: StepMessage) -> Step:
    """One step as one rank saw it."""
    loss = message.get("loss")
    return Step(
        seconds=float(message["seconds"]),
        samples=int(message["samples"]),
        loss=None if loss is None else float(loss),
        delayed_seconds=float(message.get("delayed") or 0.0),
        compile_seconds=float(message.get("compiled") or 0.0),
        size=int(message.get("size") or 0),
    )


def _whole(steps: Iterable[Step]) -> Step:
    """A step of the job lasts as long as in its slowest rank; its samples are those of all."""
    ranks = tuple(steps)
    losses = [step.loss for step in ranks if step.loss is not None]
    return Step(
        seconds=max(step.seconds for step in ranks),
        samples=sum(step.samples for step in ranks),
        loss=sum(losses) / len(losses) if losses else None,
        delayed_seconds=max(step.delayed_seconds for step in ranks),
        compile_seconds=max(step.compile_seconds for step in ranks),
        size=max(step.size for step in ranks),
    )


LOOK_EVERY_SECONDS = 20.0
IDLE_SHARE = 0.002
"""A process that uses less than this share of one CPU is not about to start: even a download of
half a megabyte per second uses several times as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long is waited for the steps of a job, in seconds.

    Attributes:
        startup: for the first step; a script may download and tokenize before it trains.
        idle: for the first step while nothing is computed.
        step: for each later step; None adapts it to the slowest so far.
    """

    startup: float = 1800.0
    idle: float = 180.0
    step: float | None = None


class IdleWatch:
    """Watches processes by the CPU time that they use, which ``cpu_seconds`` tells."""

    def __init__(self, cpu_seconds: Callable[[], float], patience_seconds: float) -> None:
        self._cpu_seconds = cpu_seconds
        self._patience = patience_seconds
        self._each = min(LOOK_EVERY_SECONDS, patience_seconds / 2)
        self._seconds = cpu_seconds()
        self._looked = self._busy_until = time.monotonic()

    def hangs(self) -> bool:
        """Whether nothing was computed for so long, as far as the last looks showed."""
        now = time.monotonic()
        if now - self._looked >= self._each:
            seconds = self._cpu_seconds()
            if seconds - self._seconds > IDLE_SHARE * (now - self._looked):
                self._busy_until = now
            self._looked, self._seconds = now, seconds
        return self._looked - self._busy_until >= self._patience

    @property
    def next_look_seconds(self) -> float:
        """How long to wait before looking again."""
        return max(0.0, self._looked + self._each - time.monotonic())
