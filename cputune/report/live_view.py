"""The live view of a study, redrawn in place, and removed when the study ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cputune.plans.plan import Plan
from cputune.records.result import COMPLETED, Throughput, Trial
from cputune.records.shared_texts import duration
from cputune.text.plain import figure, visible
from cputune.tuner.events import (
    ComparisonSoFar,
    ConfirmStarted,
    Event,
    Message,
    StepTaken,
    StudyStarted,
    TrialEnded,
    TrialStarted,
    as_text,
    most_trials,
)

if TYPE_CHECKING:
    from rich.text import Text

# What a study does if no message says it.
BETWEEN = "between two trials"

# Half of a terminal with 24 lines and 80 columns. On a wider one a name has half of the width.
MOST_LINES = 12
LONGEST_NAME = 42


@dataclass(slots=True, kw_only=True)
class Standing:
    """The state of a study, from its events so far.

    ``started`` is when the command began, ``most_seconds`` the time limit. ``trials`` is the
    largest number of trials, None before the space is known. ``number`` is the last trial, from 0.
    ``done`` have ended, ``measured`` is the throughput of each plan. ``doing`` and ``detail`` say
    what happens now. ``steps`` counts the steps of all plans, ``delayed`` those that other
    processes delayed.
    """

    started: float
    most_seconds: float = math.inf
    trials: int | None = None
    number: int = 0
    done: int = 0
    measured: dict[Plan, Throughput] = field(default_factory=dict)
    compared: ComparisonSoFar | None = None
    steps: int = 0
    delayed: int = 0
    doing: str = "starting"
    detail: str = ""

    @property
    def best(self) -> float:
        """The best samples per second of a single trial, 0 before the first."""
        return max((rate.centre for rate in self.measured.values()), default=0.0)

    def take(self, event: Event) -> None:
        """Update the state."""
        if isinstance(event, StudyStarted):
            self.trials = most_trials(event.space, event.budget)
            self.done = max(self.done, event.resumed)
            if event.most_seconds is not None:
                self.most_seconds = event.most_seconds
        elif isinstance(event, TrialStarted):
            self.number = event.number
            self._go_on(f"trial {event.number}  {event.plan.short()}")
        elif isinstance(event, TrialEnded):
            self._end(event.trial)
        elif isinstance(event, StepTaken):
            self._step(event)
        elif isinstance(event, Message) and self.doing == BETWEEN:
            self.doing = event.text
        elif isinstance(event, Message):
            self.detail = event.text
        elif isinstance(event, ComparisonSoFar):
            self.compared = event
        elif isinstance(event, ConfirmStarted):
            self._go_on(as_text(event))

    def _go_on(self, doing: str) -> None:
        self.doing, self.detail = doing, ""

    def _end(self, trial: Trial) -> None:
        self._go_on(BETWEEN)
        self.done += 1
        rate = trial.samples_per_second
        if trial.state == COMPLETED and rate is not None:
            self.measured[trial.plan] = rate

    def _step(self, event: StepTaken) -> None:
        self.steps += 1
        self.delayed += event.delayed
        if event.number in (None, self.number):
            self.detail = f"step {event.index + 1}, {figure(event.seconds)} s"
            if event.delayed:
                self.detail += ", delayed by others"

    def share(self, now: float) -> float | None:
        """The elapsed share of the study, 0 to 1: of its time limit, or else of its trials."""
        if self.most_seconds not in (0.0, math.inf):
            return min(1.0, (now - self.started) / self.most_seconds)
        if self.trials:
            return min(1.0, self.done / self.trials)
        return None

    def tail(self, now: float) -> str:
        """The number of trials, the time, and the best so far. Single trials are only rough."""
        parts = []
        if self.trials is not None:
            parts.append(f"{self.done} of {self.trials} trials")
        elapsed = now - self.started
        parts.append(duration(elapsed))
        if self.most_seconds != math.inf:
            parts.append(f"at most {duration(max(0.0, self.most_seconds - elapsed))} more")
        if self.best:
            parts.append(f"best {figure(self.best)} samples/s")
        return ", ".join(parts)


def live_lines(standing: Standing, now: float, columns: int) -> tuple[Text, ...]:
    """The lines of the view, each cut at the width of the terminal."""
    from rich.text import Text

    above = [Text(visible(standing.doing), "bold cyan")]
    if standing.detail:
        above.append(Text(f"  {visible(standing.detail)}"))
    above.append(Text(standing.tail(now), "green"))
    below = []
    if standing.compared is not None:
        below.append(Text(as_text(standing.compared), "bold"))
        if standing.compared.is_known:
            below.append(_ruler(standing.compared, columns))
    if standing.delayed:
        late = f"{standing.delayed} of {standing.steps} steps were delayed by other processes"
        below.append(Text(late, "yellow"))
    plans = _plans(standing, columns, MOST_LINES - len(above) - len(below))
    lines = tuple(above + plans + below)
    for line in lines:
        line.truncate(max(1, columns - 1), overflow="ellipsis")
    return lines


MOST_TIMES = 10.0  # largest ratio on the line


def _ruler(compared: ComparisonSoFar, columns: int) -> Text:
    """The ratio and its interval on a line from 0, with the current launch at 1."""
    from rich.text import Text

    most = max(2, math.ceil(min(compared.high, MOST_TIMES)))
    room = max(10, columns - len(f"×0  ×{most}") - 1)
    points = (max(0.0, compared.low), compared.ratio, compared.high)
    place = [round(min(at, most) * (room - 1) / most) for at in points]
    signs = ["·"] * room
    signs[place[0] : place[2] + 1] = "─" * (place[2] + 1 - place[0])
    places = place + [round((room - 1) / most)]
    for at, sign in zip(places, "├●┤│", strict=True):
        signs[at] = sign
    return Text(f"×0 {''.join(signs)} ×{most}", "dim")


def _plans(standing: Standing, columns: int, most: int) -> list[Text]:
    """The fastest plans, each with a bar up to the lower end of its interval, and a lighter one up
    to the upper end.
    """
    from rich.text import Text

    ordered = sorted(standing.measured.items(), key=lambda entry: -entry[1].centre)[:most]
    if not ordered:
        return []
    top = max(rate.high for _, rate in ordered)
    names = [plan.short() for plan, _ in ordered]
    wide = min(max(LONGEST_NAME, columns // 2), max(map(len, names)))
    room = max(0, columns - wide - 14)
    lines = []
    for name, (_, rate) in zip(names, ordered, strict=True):
        cut = name
        if len(name) > wide:
            cut = f"{name[: wide - 1]}…"
        sure, unsure = round(room * rate.low / top), round(room * rate.high / top)
        line = Text.assemble(
            f"{visible(cut):<{wide}}  {figure(rate.centre):>6}  ",
            ("█" * sure, "cyan"),
            ("▒" * max(1, unsure - sure), "dim"),
        )
        lines.append(line)
    return lines
