"""One launch from start to end: starts it, reads the reports of its ranks, ends it.

``observe`` runs a launch as it is. Environment variables alone make its ranks report
(``cputune.inside``): a directory that comes first on PYTHONPATH, and a socket.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from cputune.host import Command
from cputune.inside import SCRATCH_VARIABLE, SHOW_VARIABLE, SOCKET_VARIABLE
from cputune.inside.applying.figures import Figures
from cputune.inside.messages import (
    Ended,
    ModelAnswer,
    Profiled,
    Raised,
    RankMessage,
    RankState,
    TrainedStep,
)
from cputune.plans.equivalence import Training, training_of
from cputune.ranks.compare import drift, global_batch
from cputune.ranks.engines import Engine, Launch, on_python_path
from cputune.ranks.failure import early_end, failure
from cputune.ranks.gather import Gather, of_rank
from cputune.ranks.hangs import LOOK_SECONDS, IdleWatch
from cputune.ranks.listen import Inbox
from cputune.ranks.supervisor import Supervisor, WorkFolder, tail_of
from cputune.ranks.supervisor_main import TAIL_BYTES, Exit, RankCommand
from cputune.records.steps import (
    BEFORE_ITS_FIRST_STEP,
    Crashed,
    HostLost,
    Infeasible,
    Step,
    TimedOut,
    TimeUp,
    TrialError,
)
from cputune.text.hidden import without_secrets

# When one rank has failed, the others soon fail too. The job is observed for this time, so that
# the rank that failed first is known.
LAST_WORDS_SECONDS = 1.0

# A rank that has raised an exception still writes its traceback and ends. On a busy machine
# that takes time.
TRACEBACK_SECONDS = 10.0

# Characters of a failing script's output that are kept.
MOST_WORDS = 2000

# Time limit of the first step if no other start is known: a script may download and tokenize.
STARTUP_SECONDS = 1800.0

# Time limit of a later step: at least so long, and so many times the slowest one before it. One
# other busy process can make a step 9 times as long.
SMALLEST_STEP_TIMEOUT = 60.0
SLOWER_THAN_BEFORE = 20.0

# Ranks that run on may take several steps without asking: as many as fill these seconds, within
# this limit; steps that are longer are waited for one by one.
LONG_STEP_SECONDS = 3.0
AHEAD_SECONDS, MOST_AHEAD = 0.05, 64


@dataclass(slots=True, kw_only=True)
class Rank:
    """What one rank has reported.

    Attributes:
        state: what it really runs with; None if it never came to its first step.
        trained: what it trained in its first steps.
        figures: its weights and learning rates after the last step that it reported them of.
        trouble: the exception that its script raised, or why it could not run as requested.
        profile: where its time went, if that was requested.
        answers: what its model has answered, if it was checked.
    """

    number: int
    state: RankState | None = None
    steps: list[Step] = field(default_factory=list)
    trained: list[TrainedStep] = field(default_factory=list)
    figures: Figures | None = None
    trouble: str | None = None
    profile: Profiled | None = None
    answers: list[ModelAnswer] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class Job:
    """The processes of one launch, on one machine or on several.

    Of a launch over hosts, only the first commands run here. What its ranks use and who
    ends them there is not seen from here, and they stand still by waiting for their turn.

    Attributes:
        supervisor: starts the ranks; the job ends it.
        inbox: receives the reports of the ranks; the job closes it.
        world: how many ranks there are.
        grace_seconds: between SIGINT, SIGTERM and SIGKILL.
        hosts: the other hosts on which the ranks run, in order; none: this machine.
        on_note: gets the notes of ranks for people.
        start_seconds: the patience with the first step.
        clean: removes secrets from what a script has written.
        versions: of the packages with which the ranks train; they explain errors.
        ranks: what each rank has reported, by its number.
        exits: of the processes that were started here, in the order of their ends.
        errors: exceptions that scripts raised, the first first.
        ends: scripts that came to their own end.
        refused: why a rank could not run as asked.
        waits: the share of each step of each rank that it waited for its data.
        drift: how the weights or learning rates of its ranks differ; empty if they do not.
        relay_tails: what the relays of a batch job wrote that have ended.
    """

    supervisor: Supervisor
    inbox: Inbox
    world: int
    grace_seconds: float
    hosts: tuple[str, ...] = ()
    start_seconds: float = STARTUP_SECONDS
    on_note: Callable[[str], None] = lambda text: None
    clean: Callable[[str], str] = lambda text: without_secrets(text, os.environ)
    versions: Mapping[str, str] = field(default_factory=dict)
    ranks: dict[int, Rank] = field(default_factory=dict)
    exits: list[Exit] = field(default_factory=list)
    errors: list[Raised] = field(default_factory=list)
    ends: list[Ended] = field(default_factory=list)
    refused: Infeasible | None = None
    waits: list[float] = field(default_factory=list)
    drift: str = ""
    relay_tails: list[str] = field(default_factory=list)
    _engine: tuple[Engine, Launch] | None = None
    _started: int = 0
    _ended: bool = False
    _slowest: float = 0.0
    _quickest: float = math.inf
    _allowed: int = 1
    _wanted: int = 1
    _runs_on: bool = False
    _held: list[Step] = field(default_factory=list)
    _to_profile: int = 0

    def __post_init__(self) -> None:
        self.inbox.add(self.supervisor.socket, self.supervisor.lines)
        self._gather = Gather(self.world)
        self._relays: dict[int, str] = {}
        self._idle = IdleWatch(below=self.supervisor.below)
        self._memory_kills = kernel_kills()

    def launch(self, engine: Engine, launch: Launch) -> None:
        """Start the plan by its engine, which later says why it has ended."""
        self._engine = engine, launch
        self.start(engine.start(launch))

    def start(
        self, commands: Sequence[RankCommand], *, mark: tuple[str, str] | None = None
    ) -> None:
        """Start the ranks, or the launchers that start them (``mark``: see ``Request``)."""
        self._relays = {}
        for number, command in enumerate(commands):
            if "host" in command:
                self._relays[number] = command["host"]
        self._started = len(commands) - len(self._relays)
        self.supervisor.start(commands, mark=mark)

    def turn(self, steps: int, *, profiled: int = 0) -> None:
        """Let a job take these steps, which are about to be read, and then wait.

        The start-up and the first step need no permission. ``profiled``: in this many of the steps
        after the first one of the turn, each rank reports where the time goes.
        """
        self._wanted, self._to_profile = steps, profiled
        self.supervisor.continue_ranks()

    def run_on(self) -> None:
        """Let a job take one step after the other, until ``finish_steps`` is called."""
        self._runs_on = True

    def finish_steps(self, seconds: float) -> bool:
        """Let a job take the steps that it may take, unread, and no further one.

        False if it has failed, has come to its end, or takes longer than that.
        """
        self._runs_on, self._wanted = False, 0
        until = time.monotonic() + seconds
        while self._gather.count < self._allowed and not self._is_ending:
            seconds_left = until - time.monotonic()
            if seconds_left <= 0:
                return False
            self.receive(seconds_left)
        self._held.clear()
        return not self._is_ending

    @property
    def _is_ending(self) -> bool:
        return bool(self.exits or self.errors or self.ends or self.refused)

    def pause(self) -> None:
        """Stop every process of the launch until its next turn (``Supervisor.stop_ranks``)."""
        if not self.hosts:
            self.supervisor.stop_ranks()

    def receive(self, seconds: float) -> list[Step]:
        """Wait for at most ``seconds`` for messages; returns the job's steps that they complete.

        Raises Crashed if a supervisor has died or a message cannot be read, and HostLost.
        """
        return self._take(self.inbox.wait(max(0.0, seconds)))

    def receive_rest(self, seconds: float) -> list[Step]:
        """Wait for at most ``seconds`` until every process has ended, then read what is left."""
        deadline = time.monotonic() + seconds
        steps: list[Step] = []
        while not self.is_over and (seconds_left := deadline - time.monotonic()) > 0:
            steps += self.receive(seconds_left)
        while received := self.inbox.wait(0.0):
            steps += self._take(received)
        return steps

    @property
    def is_over(self) -> bool:
        """Whether every process that was started here has ended."""
        return len(self.exits) >= self._started

    def steps(
        self,
        check: Callable[[Sequence[RankState]], None],
        script: str,
        seconds_left: Callable[[], float] = lambda: math.inf,
    ) -> Iterator[Step]:
        """The steps of the job; ``check`` sees the state of all ranks before the first one.

        Raises TrialError if the job fails, hangs or ends, and TimeUp if nothing is left of the
        time: once there are steps, for another one that is no slower.
        """
        since, checked = time.monotonic(), False
        while True:
            self._allow_what_is_wanted()
            for step in self.receive(self._patience(since, seconds_left())):
                self._held.append(step)
                self._slowest = max(self._slowest, step.seconds)
                self._quickest = min(self._quickest, step.seconds)
                since = time.monotonic()
            if self.refused is not None:
                raise self.refused
            if not checked and len(self.observed) == self.world:
                check(self.observed)
                checked = True
            while checked and self._held:
                self._wanted -= 1
                yield self._held.pop(0)
                self._allow_what_is_wanted()
                since = time.monotonic()
            if self._is_ending:
                deadline = time.monotonic() + TRACEBACK_SECONDS
                while self.errors and not self.exits and time.monotonic() < deadline:
                    self.receive(deadline - time.monotonic())
                self.receive_rest(LAST_WORDS_SECONDS)
                raise self._over(script)

    def _patience(self, since: float, time_left: float) -> float:
        """For how many seconds to wait now for a step, if none came ``since``.

        Raises TimedOut and TimeUp.
        """
        now, count = time.monotonic(), self._gather.count
        watched = not count and not self.hosts
        if watched and (reason := self._idle.deadlock(now)):
            text = f"it hangs before its first step: {reason}"
            raise TimedOut(text, details=self._first_tail(), hopeless=True)
        longest = self.start_seconds
        if count:
            longest = max(SMALLEST_STEP_TIMEOUT, SLOWER_THAN_BEFORE * self._slowest)
        if now - since >= longest:
            reason = f"no step for {longest:.0f} s after {count} steps"
            if not count:
                reason = self._no_first_step(longest, now, watched=watched)
            raise TimedOut(reason, details=self._first_tail())
        if time_left + self._slowest <= 0:
            raise TimeUp(self._with_what_it_waits_for(BEFORE_ITS_FIRST_STEP, now, watched=watched))
        soon = LOOK_SECONDS if watched else math.inf
        return min(since + longest - now, time_left + self._slowest, soon)

    def _first_tail(self) -> str | None:
        """End every process; returns the first tail of an output that is not empty."""
        for tail in self.end().values():
            if tail.strip():
                return tail
        return None

    def _no_first_step(self, seconds: float, now: float, *, watched: bool) -> str:
        """That there was no first step, of which ranks, and what they wait for."""
        silent = []
        for number in range(self.world):
            if number not in self.ranks or not self.ranks[number].state:
                silent.append(str(number))
        text = f"no first step in {seconds:.0f} s"
        if silent and self.observed:
            text += f" of rank {', '.join(silent)}"
        return self._with_what_it_waits_for(text, now, watched=watched)

    def _with_what_it_waits_for(self, text: str, now: float, *, watched: bool) -> str:
        waits_for = self._idle.waits_for(now) if watched else ""
        if waits_for:
            return f"{text}; {waits_for}"
        return text

    def _allow_what_is_wanted(self) -> None:
        """Let the ranks take the steps of this turn, once they have taken all they may.

        A step that the job does not count (a short last batch) is replaced by another one. Ranks
        that run on get leave for the next steps before they come to them, or they would wait for us
        after each step. Where steps are long this waiting is negligible, and a step ahead would be
        computed in vain.
        """
        done = self._gather.count
        if done == 0:
            return
        if self._runs_on:
            quickest = max(self._quickest, AHEAD_SECONDS / MOST_AHEAD)
            ahead = math.ceil(AHEAD_SECONDS / quickest) if quickest <= LONG_STEP_SECONDS else 0
            more = done + 1 + ahead - self._allowed
        else:
            more = self._wanted if done >= self._allowed else 0
        if more > 0:
            self.inbox.send_to_ranks({"steps": more, "profile": self._to_profile})
            self._allowed, self._to_profile = self._allowed + more, 0

    @property
    def observed(self) -> tuple[RankState, ...]:
        """What each rank has reported, in their order."""
        states = []
        for _, rank in sorted(self.ranks.items()):
            if rank.state is not None:
                states.append(rank.state)
        return tuple(states)

    def training(self) -> Training | None:
        """What all ranks train together, by what they reported of their first steps."""
        states = self.observed
        trained: list[list[TrainedStep]] = []
        losses: list[float | None] = []
        for _, rank in sorted(self.ranks.items()):
            if rank.trained:
                trained.append(rank.trained)
            if rank.steps:
                losses.append(rank.steps[0].loss)
        if len(trained) < self.world or len(states) < self.world:
            return None
        rounded = any(state.get("products_rounded") for state in states)
        return training_of(
            trained,
            dtype="bfloat16" if rounded else states[0].get("dtype"),
            losses=losses,
            batch=global_batch(states),
            data=states[0].get("dataset_samples"),
            drift=self.drift,
        )

    def end(self) -> dict[str, str]:
        """End every process and all that they started; returns the tail of each one's output."""
        if self._ended:
            return {}
        self._ended = True
        tails = self.supervisor.end(self.grace_seconds)
        self.inbox.close()
        if self._engine is not None:
            self._engine[0].end(self._engine[1])
        return {number: self.cleaned(tail) for number, tail in tails.items()}

    def _take(self, received: Sequence[tuple[object, object]]) -> list[Step]:
        steps = []
        for source, message in received:
            if isinstance(source, Supervisor):
                if message is None:
                    raise source.died()
                self._take_exit(cast(Exit, message))
            elif isinstance(source, int):
                rank = self.ranks.setdefault(source, Rank(number=source))
                try:
                    step = self._take_of_rank(rank, cast("RankMessage | None", message))
                except (KeyError, TypeError, ValueError) as error:
                    raise Crashed(f"rank {source} sent a message that cannot be read") from error
                if step is not None:
                    steps.append(step)
        return steps

    def _take_exit(self, ended: Exit) -> None:
        """Keep how a process of this machine ended. Raises HostLost if a host is lost by that."""
        host = self._relays.get(ended.get("rank", -1))
        if host is None:
            self.exits.append({**ended, "tail": self.cleaned(ended["tail"])})
        elif not host:  # the job has ended it, and Slurm reports later that the job has ended
            self.relay_tails.append(self.cleaned(ended["tail"]))
        elif not self._is_ending:  # a relay ends with its launch; before that its host is lost
            raise HostLost(host, self._why_lost(host, ended))

    def _why_lost(self, host: str, ended: Exit) -> str:
        """Why the connection to a host has ended."""
        if self._engine is None:
            return "the connection was cut"
        engine, launch = self._engine
        node = next(node for node in launch.nodes if node.name == host)
        return engine.reach.explain(node, ended["status"], self.cleaned(ended["tail"]))[0]

    def cleaned(self, text: str) -> str:
        """The output of a script without secrets; it is cut last, or half of one would stay."""
        return self.clean(text)[-TAIL_BYTES // 2 :]

    def _take_of_rank(self, rank: Rank, message: RankMessage | None) -> Step | None:
        if message is None:
            return None
        if message["event"] == "step":
            step = of_rank(message)
            self.waits.append(float(message.get("waited") or 0.0) / max(step.seconds, 1e-9))
            rank.steps.append(step)
            if trained := message.get("trained"):
                rank.trained.append(trained)
            if figures := message.get("figures"):
                rank.figures = figures
                figures_by_rank = [other.figures for _, other in sorted(self.ranks.items())]
                self.drift = self.drift or drift(figures_by_rank, self.world)
            return self._gather.add(rank.number, int(message["number"]), step)
        if message["event"] == "state":
            message["local_rank"] = rank.number
            rank.state = message
        elif message["event"] in ("applied", "answer"):
            _keep(rank, message)
        elif message["event"] == "profile":
            rank.profile = message
        elif message["event"] == "note":
            self.on_note(str(message["text"]))
        elif message["event"] == "end":
            self.ends.append(message)
        else:
            self._take_trouble(rank, message)
        return None

    def _take_trouble(self, rank: Rank, message: RankMessage) -> None:
        if message["event"] == "refused":
            rank.trouble = self.cleaned(str(message["reason"]))
            hopeless = bool(message.get("hopeless"))
            self.refused = self.refused or Infeasible(rank.trouble, hopeless=hopeless)
        elif message["event"] == "error":
            text = self.cleaned(str(message.get("text", "")))[:MOST_WORDS]
            self.errors.append({**message, "text": text})
            rank.trouble = f"{message['kind']}: {text}"

    def _over(self, script: str) -> TrialError:
        if self._engine is not None:
            engine, launch = self._engine
            error = engine.reason_of_end(launch, self.exits)
            if error is not None:
                return error
        failed = self.errors or any(exit_["status"] != 0 for exit_ in self.exits)
        if self.ends and not failed:
            used: set[str] = set()
            for end in self.ends:
                used.update(end["seen"])
            return early_end(sorted(used), script, self._gather.count)
        memory_kills = None
        before, now = self._memory_kills, None if self.hosts else kernel_kills()
        if now is not None and before is not None:
            memory_kills = now - before
        return failure(
            self.exits,
            self.errors,
            memory_kills=memory_kills,
            steps=self._gather.count,
            script=script,
            versions=self.versions,
        )


def _keep(rank: Rank, message: Any) -> None:
    """Keep what a rank's model has answered, or what a plan has changed in its script."""
    if message["event"] == "answer":
        rank.answers.append(message)
    elif rank.state is not None:
        rank.state["applied"] = message["did"]


def kernel_kills() -> int | None:
    """How often the kernel has killed for memory since it booted, also in control groups."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    except (OSError, ValueError, StopIteration):
        return None


# How long other ranks of a launch are awaited after one has made its steps.
LATE_SECONDS = 30.0
# Between SIGINT, SIGTERM and SIGKILL, for an observed launch.
GRACE_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """How a launch went.

    Attributes:
        ranks: what each rank has reported, in order; those without a report are left out.
        steps: the steps of the whole job.
        training: what its first steps train; None if not every rank has reported it.
        returncode: the first that was not 0, else 0; None if the launch had to be ended,
            after the last step that was wanted (``enough``) or at its time limit.
            A command that fails ends the others, which would wait for its ranks.
        output: the tail of what it wrote.
    """

    ranks: tuple[Rank, ...]
    steps: tuple[Step, ...] = ()
    training: Training | None = None
    returncode: int | None
    enough: bool
    timed_out: bool
    seconds: float
    output: str


# The commands of a launch; or a function that makes them from the variables by which ranks
# report.
Begin = Sequence[Command] | Callable[[Mapping[str, str]], Sequence[RankCommand]]


def observe(
    commands: Begin,
    *,
    ranks: int,
    steps: int,
    timeout_seconds: float,
    logs: Sequence[Path] = (),
    show: Iterable[str] = (),
) -> Launched:
    """Start the commands together and receive reports until every rank has made its steps.

    ``ranks`` is how many are waited for. A launch that starts fewer is observed until it ends by
    itself, or the time is up. ``logs`` are further files with its output. ``show`` names variables
    that the ranks report beside the usual ones. What the script would have written goes to a
    temporary folder. Raises TrialError if the launch cannot be observed.
    """
    with WorkFolder() as work:
        scratch = work.path / "scratch"
        scratch.mkdir()
        supervisor = Supervisor(os.environ, (), work)
        inbox = Inbox(work.path)
        started = time.monotonic()
        job = Job(supervisor=supervisor, inbox=inbox, world=ranks, grace_seconds=GRACE_SECONDS)
        try:
            variables = {
                SOCKET_VARIABLE: inbox.address,
                SCRATCH_VARIABLE: str(scratch),
                SHOW_VARIABLE: ",".join(show),
            }
            if callable(commands):
                started_ranks = commands(variables)
            else:
                started_ranks = [_command(command, variables) for command in commands]
            # slurmd starts the ranks of a batch script, not the process that submitted it.
            address = started_ranks[0]["env"].get(SOCKET_VARIABLE, inbox.address)
            job.start(started_ranks, mark=(SOCKET_VARIABLE, address))
            of_job, enough = _received(job, ranks, steps, deadline=started + timeout_seconds)
            over = job.is_over
            if over:
                of_job += job.receive_rest(0.0)
            seconds = time.monotonic() - started
            tails = [exit_["tail"] for exit_ in job.exits] + job.relay_tails
        finally:
            tails_of_ended = job.end()
        if not over:
            tails += tails_of_ended.values()
        tails += [tail_of(log, job.cleaned) for log in logs]
        failed = next((exit_["status"] for exit_ in job.exits if exit_["status"]), None)
        reporting = []
        for _, rank in sorted(job.ranks.items()):
            if rank.state or rank.steps or rank.trouble:
                reporting.append(rank)
        return Launched(
            ranks=tuple(reporting),
            steps=tuple(of_job),
            training=job.training(),
            returncode=0 if over and failed is None else failed,
            enough=enough,
            timed_out=not (over or enough or failed),
            seconds=seconds,
            output="\n".join(filter(str.strip, dict.fromkeys(tails))),
        )


def _received(job: Job, ranks: int, steps: int, *, deadline: float) -> tuple[list[Step], bool]:
    """The steps that arrive until every rank has made its own, and whether they have."""
    of_job: list[Step] = []
    enough = False
    while not (job.is_over or enough or time.monotonic() >= deadline):
        of_job += job.receive(deadline - time.monotonic())
        made = sum(len(rank.steps) >= steps for rank in job.ranks.values())
        enough = made >= ranks
        if made:  # ranks that train together are at most a step behind
            deadline = min(deadline, time.monotonic() + LATE_SECONDS)
        if any(exit_["status"] for exit_ in job.exits):  # the others would wait for it
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    return of_job, enough


def _command(command: Command, variables: Mapping[str, str]) -> RankCommand:
    environment = on_python_path({**(command.environment or os.environ), **variables})
    return {"argv": list(command.argv), "env": environment, "cwd": command.cwd}
