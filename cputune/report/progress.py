"""A study while it runs: where it stands, what is best so far, how long it takes, who disturbs.

``Standing`` is made of the events of a study alone; ``block`` draws it for a terminal, and
``tail`` says it at the end of a line of a log.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cputune.errors import MissingPackageError
from cputune.result import COMPLETED, Result, Trial
from cputune.text import figure, visible
from cputune.tuner.changes import changes
from cputune.tuner.confirmation import (
    LEAST_ROUNDS,
    MOST_RIVALS,
    MOST_SECONDS,
    PROFILE_STEPS,
    Pace,
    end_seconds,
)
from cputune.tuner.events import (
    ConfirmStarted,
    Disturbed,
    Event,
    Said,
    StepTaken,
    StudyEnded,
    StudyStarted,
    TrialEnded,
    TrialRepeated,
    TrialStarted,
    Waiting,
)
from cputune.tuner.measuring import STUDY_SHARE, USUAL_RUNS, USUAL_SECONDS

if TYPE_CHECKING:
    from rich.text import Text

    from cputune.tuner.space import SearchSpace

_MOST_NAMED = 3


@dataclass(slots=True, kw_only=True)
class Standing:
    """Where a study stands: what its events have told so far.

    ``started`` is when the command began, by the clock of whoever calls ``take``; ``trials``
    are those that can be run at most, None before the space is known; ``number`` is the one that
    runs, or ran last, from 0, and ``done`` how many have ended. ``doing`` is what goes
    on now, and ``detail`` more of it. ``searching_since`` is when the first trial after
    today's launch began: what comes before (imports, downloads) says nothing of the rest.
    ``longest_start`` is what a trial after it took longest until its first step, and
    ``ends_at`` when all is expected to be over, once the search is. ``most_seconds`` is the time
    that was given.
    """

    started: float
    most_seconds: float = math.inf
    trials: int | None = None
    number: int = 0
    done: int = 0
    resumed: int = 0
    today: Trial | None = None
    best: Trial | None = None
    heading: str = "starting"
    doing: str = ""
    detail: str = ""
    delayed: bool = False
    neighbours: tuple[str, ...] = ()
    searching_since: float | None = None
    searched: int = 0
    trial_since: float = 0.0
    longest_start: float = 0.0
    space: SearchSpace | None = None
    changes: int = 1
    ends_at: float | None = None
    result: Result | None = None

    def take(self, event: Event, now: float) -> None:
        """Learn from an event that came at ``now``."""
        if isinstance(event, StudyStarted):
            self.space = event.space
            self.trials = most_trials(event.space, event.budget)
            self.done = max(self.done, event.resumed)
            if event.most_seconds is not None:
                self.most_seconds = event.most_seconds
        elif isinstance(event, TrialStarted):
            self.number, self.trial_since = event.number, now
            self._go_on(f"trial {event.number}", event.plan.describe())
            if event.number and self.searching_since is None:
                self.searching_since = now
        elif isinstance(event, TrialEnded):
            self._learn(event.trial, now)
        elif isinstance(event, TrialRepeated):
            self.detail, self.delayed = f"once more: {event.reason}", True
        elif isinstance(event, StepTaken):
            self.detail = f"step {event.index + 1}, {figure(event.seconds)} s"
            self.delayed = event.delayed
        elif isinstance(event, Said):
            self.detail = event.text
        elif isinstance(event, Waiting):
            self._go_on("waiting", f"for {event.owner}, which measures on this machine")
        elif isinstance(event, Disturbed):
            self.neighbours = event.neighbours
            if event.waiting:
                self._go_on("waiting", "until nobody else computes here")
        elif isinstance(event, ConfirmStarted):
            self.searching_since = None
            self.ends_at = now + self._end_seconds(len(event.plans) - 1)
            self._go_on("confirming", f"{len(event.plans)} plans side by side")
        elif isinstance(event, StudyEnded):
            self.result = event.result

    def _go_on(self, heading: str, doing: str) -> None:
        self.heading, self.doing, self.detail, self.delayed = heading, doing, "", False

    def _learn(self, trial: Trial, now: float) -> None:
        self.done = trial.number + 1
        if trial.number:
            self.searched += 1
        if trial.number and not trial.elsewhere:
            started = now - self.trial_since - trial.step_seconds
            self.longest_start = max(self.longest_start, started)
        if trial.state != COMPLETED or trial.samples_per_second is None:
            return
        if trial.plan.as_found:
            self.today = trial
        if self.best is None or _rate(trial) > _rate(self.best):
            self.best = trial
            if self.space is not None and trial.plan in self.space.values:
                today = self.today.plan if self.today else self.space.baseline
                self.changes = len(changes(self.space, today, trial.plan))

    @property
    def of_all(self) -> str:
        """``5 of 20``: the trial that runs, or ran last; empty before the space is known."""
        if self.trials is None or not self.heading.startswith("trial"):
            return ""
        return f"{self.number + 1} of {self.trials}"

    def gain(self) -> str | None:
        """The best so far beside today's launch: single trials, so that it is only about."""
        if self.best is None:
            return None
        rate = f"{figure(_rate(self.best))} samples/s"
        if self.today is None or self.best is self.today:
            return rate
        return f"{rate}, about {_rate(self.best) / _rate(self.today):.1f} × today"

    def left_seconds(self, now: float) -> float | None:
        """What is left of the study at the pace so far; None where none is known.

        The rest of the search, the confirmation with what each change is worth, the profile.
        """
        used = now - self.started
        if self.ends_at is not None:
            left = self.ends_at - now
        elif self.trials is None or self.searching_since is None or not self.searched:
            return None
        else:
            each = (now - self.searching_since) / self.searched
            given = STUDY_SHARE * self.most_seconds - used
            search = min(each * (self.trials - self.done), given)
            left = max(0.0, search) + self._end_seconds(min(self.searched, MOST_RIVALS))
        return max(0.0, min(left, self.most_seconds - used))

    def _end_seconds(self, rivals: int) -> float:
        """What comes after the search, where so many plans are measured beside today's launch."""
        known = [trial for trial in (self.today, self.best) if trial is not None and trial.steps]
        if not known:
            return 0.0
        step = max(trial.step_seconds / trial.steps for trial in known)
        pace = Pace(start_seconds=self.longest_start, step_seconds=step)
        return end_seconds(pace, rivals=rivals, changes=self.changes)

    def time(self, now: float) -> str:
        """``1m 12s, about 3m to the end``."""
        left = self.left_seconds(now)
        end = "" if left is None else f", about {duration(left)} to the end"
        return duration(now - self.started) + end

    def tail(self, now: float) -> str:
        """The same in few words, for the end of a trial's line in a log."""
        of = "" if self.trials is None else f"{self.done} of {self.trials}, "
        gain = "" if self.best is None or self.best is self.today else f", best {self.gain()}"
        return f"[{of}{duration(now - self.started)}{gain}]"

    def disturbed_by(self) -> str | None:
        """Who computes on this machine too, in words, as far as was seen."""
        named = [visible(name) for name in self.neighbours[:_MOST_NAMED]]
        more = len(self.neighbours) - len(named)
        return ", ".join(named) + (f" and {more} more" if more else "") if named else None


class ProgressBar:
    """For ``on_event``: tqdm's bar of the trials and the best so far, also in a notebook.

    Raises MissingPackageError without tqdm, which comes with transformers and with optuna.
    """

    def __init__(self) -> None:
        try:
            with warnings.catch_warnings():  # a notebook without ipywidgets has a bar of text
                warnings.simplefilter("ignore")
                from tqdm.auto import tqdm
        except ImportError as error:
            raise MissingPackageError(
                "a progress bar needs tqdm, which is not installed", hint="pip install tqdm"
            ) from error
        self._standing = Standing(started=time.monotonic())
        self._bar = tqdm(unit="trial")

    def __call__(self, event: Event) -> None:
        """Learn from an event, and draw."""
        standing, bar = self._standing, self._bar
        standing.take(event, time.monotonic())
        searched = isinstance(event, (ConfirmStarted, StudyEnded))
        bar.n, bar.total = standing.done, standing.done if searched else standing.trials
        bar.set_description_str(f"{standing.heading}: {standing.doing}", refresh=False)
        bar.set_postfix_str(standing.gain() or "")
        if isinstance(event, StudyEnded):
            bar.close()


def race(standing: Standing, *, ascii_only: bool = False) -> list[tuple[str, str]]:
    """(bar, interval) of today's launch and of the best so far: whole to where the speed surely
    lies, broken through its interval. None before there are two.
    """
    today, best = standing.today, standing.best
    if today is None or best is None or best is today:
        return []
    rates = [one.samples_per_second for one in (today, best) if one.samples_per_second]
    most = max(rate.high for rate in rates) or 1.0
    sure, perhaps = "=-" if ascii_only else "━╌"
    found = []
    for rate in rates:
        low, high = (round(BAR_COLUMNS * value / most) for value in (rate.low, rate.high))
        bar = (sure * low + perhaps * (high - low)).ljust(BAR_COLUMNS)
        found.append((bar, f"  {figure(rate.low)} to {figure(rate.high)}"))
    return found


BAR_COLUMNS = 36


def block(
    standing: Standing, now: float, columns: int, *, ascii_only: bool = False
) -> tuple[Text, ...]:
    """The standing for a terminal: a few lines, each cut where the terminal ends."""
    from rich.text import Text

    of = f"{standing.of_all}  " if standing.of_all else ""
    late = "  delayed by others" if standing.delayed else ""
    gain, best, disturbed = standing.gain(), standing.best, standing.disturbed_by()
    rows = [(standing.heading, (of, "bold cyan"), (standing.doing, "bold"))]
    if standing.detail or late:
        rows.append(("", (visible(standing.detail), ""), (late, "yellow")))
    if gain is not None and best is not None:
        heading = "today" if best is standing.today else "best"
        rows.append((heading, (gain, "green"), (f"  {best.plan.describe()}", "")))
    bars = zip(("today", ""), race(standing, ascii_only=ascii_only), ("dim", "green"), strict=False)
    for heading, (bar, interval), style in bars:
        rows.append((heading, (bar, style), (interval, "dim")))
    rows.append(("time", (standing.time(now), ""), ("", "")))
    if disturbed is not None:
        rows.append(("beside you", (disturbed, "yellow"), ("", "")))
    lines = [Text.assemble((f"{heading:12}", "dim"), *parts) for heading, *parts in rows]
    for line in lines:
        line.truncate(max(1, columns - 1), overflow="ellipsis")
    return tuple(lines)


def duration(seconds: float) -> str:
    """``48s``, ``1m 12s``, ``2h 05m``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m {rest:02}s"
    return f"{minutes // 60}h {minutes % 60:02}m"


def most_trials(space: SearchSpace, budget: int) -> int:
    """How many trials a study has at most, today's launch among them."""
    return min(budget, len(space) + 1)


def _rate(trial: Trial) -> float:
    assert trial.samples_per_second is not None, "a completed trial has a throughput"
    return trial.samples_per_second.median


def time_lines(space: SearchSpace, budget: int, most_seconds: float | None) -> tuple[str, ...]:
    """What a study is made of, before it is known how long a start and a step take."""
    trials = most_trials(space, budget)
    usual = f"{duration(USUAL_SECONDS)}, or {USUAL_RUNS} times today's launch"
    whole = ""
    if most_seconds != math.inf:
        within = usual if most_seconds is None else duration(most_seconds)
        whole = f", all within {within} (--max-time)"
    lines = [
        f"what takes the time{whole}:",
        f"  search: {trials} trials, each a start and some steps",
    ]
    if trials > 1:
        rivals = min(MOST_RIVALS, trials - 1)
        lines += [
            f"  confirmation: {1 + rivals} plans side by side, then today's launch, the best and "
            f"those between them; about {MOST_SECONDS:.0f} s, or "
            f"{2 * LEAST_ROUNDS} turns of each",
            f"  profile: the best plan once more, {PROFILE_STEPS} steps",
        ]
    return (*lines, "  how long a start and a step take here, the first trials show")
