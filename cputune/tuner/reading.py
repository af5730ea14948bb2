"""Reading one run of a plan: which of its steps count, and how it ended.

Steps of batches of different length are converted to the mean batch: if padding is cut, one step
has several times the tokens of the next. The seconds of a step rise with its size to some power,
the weighted median of the slopes of all pairs (Theil 1950, Sen 1968; weights of Jaeckel 1972). With
it each step is converted to the mean of the same batches for all contenders: the first ones of the
training, which are the same samples in every plan but ``order=length``.

``benchmarks/search.py`` measures the numbers below.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean, variance

from cputune.errors import CputuneError
from cputune.inside.applying.order import AT_ONCE
from cputune.plans.plan import Plan
from cputune.records.result import Turn
from cputune.records.steps import (
    Contended,
    Crashed,
    Diverged,
    KeepingRunner,
    Living,
    NoMeasurement,
    Runner,
    Step,
    TimeUp,
    TrialError,
)
from cputune.tuner.race import Verdict

# Log seconds per sample of a step, and its size (``Step.size``).
SizedStep = tuple[float, int]

# The slope uses this many of the latest steps: pairs grow as the square of steps.
_MOST_STEPS = 60

# While nothing is known seconds rise as tokens do; that counts as one pair a factor e apart.
_USUAL, _USUAL_WEIGHT = 1.0, 1.0

# The resolution of clocks.
LEAST_SECONDS = 1e-9

# A run is contended if this many steps were delayed, and more than half of all.
LEAST_DELAYED = 3


@dataclass(slots=True, kw_only=True)
class Run:
    """What was read from one run of a plan.

    Attributes:
        logs: the steps that count, as log seconds per sample of a batch of the mean size;
            counted: the same as measured.
        sizes: of all steps; step_seconds: the time of all.
        trace: the seconds of each step, and whether other processes delayed it.
        ended: the job came to its own end.
        cut: when the time was up: "after 2 steps".
        living: its processes, if they were left alive.
        start_seconds: those before its first step.
    """

    logs: list[float] = field(default_factory=list)
    counted: list[SizedStep] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    delayed: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    start_seconds: float = 0.0
    trace: list[tuple[float, bool]] = field(default_factory=list)
    samples: int | None = None
    verdict: Verdict = "more"
    ended: bool = False
    cut: str | None = None
    failure: TrialError | None = None
    living: Living | None = None

    @property
    def reason(self) -> str | None:
        """Why it failed: kind, reason, last line that it wrote; None if it did not."""
        if self.failure is None:
            return None
        # Open MPI frames what it says by rules of dashes.
        last = ""
        for line in (self.failure.details or "").split("\n"):
            if line.strip().strip("-=*"):
                last = line.strip()
        reason = f"{self.failure.kind}: {self.failure}"
        if not last:
            return reason
        return f"{reason}; its last line: {last[:300]}"

    @property
    def contended(self) -> bool:
        """Whether other processes delayed most of the steps."""
        return self.delayed >= LEAST_DELAYED and 2 * self.delayed > self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a run is read: when it is enough, what delays it, and what to compare it with.

    Attributes:
        delays_itself: the plan has more threads than CPUs, so its delays are its own.
        believe_delayed: the machine is never quiet, so delayed steps count.
        reference: the losses of the baseline, by step; may be empty.
        keeps: whether the processes of a finished run stay alive.
    """

    verdict: Callable[[Sequence[float]], Verdict] = lambda logs: "more"
    delays_itself: bool = False
    believe_delayed: bool = False
    reference: Sequence[float | None] = ()
    out_of_time: Callable[[float], bool] = lambda seconds: False
    on_step: Callable[[int, Step, bool], None] = lambda index, step, delayed: None
    keeps: Callable[[Run], bool] = lambda run: False


def read_run(runner: Runner, plan: Plan, rules: Rules) -> Run:
    """Run a plan until its steps suffice, and end it in every case.

    Exceptions of the runner become the run's ``failure``; only an interrupt and our own errors are
    raised.
    """
    run = Run()
    iterator: Iterator[Step] | None = None
    try:
        iterator = iter(runner.steps(plan))
        run.ended = not _read_until_enough(iterator, run, rules)
        if run.ended and len(run.logs) < 2:
            raise NoMeasurement(
                f"the job ended after {count_of_steps(run.steps)}, before it could be measured"
            )
        if run.verdict != "more" and isinstance(runner, KeepingRunner) and rules.keeps(run):
            run.living = runner.keep()
    except TimeUp as over:
        run.cut = f"after {count_of_steps(run.steps)}" if run.steps else str(over)
    except TrialError as failure:
        run.failure = failure
    except (KeyboardInterrupt, CputuneError):
        raise
    except BaseException as error:
        reason = type(error).__name__
        if str(error):
            reason = f"{reason}: {error}"
        run.failure = Crashed(reason)
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            with contextlib.suppress(Exception):
                close()
    return run


def _read_until_enough(steps: Iterator[Step], run: Run, rules: Rules) -> bool:
    """Read steps until they suffice or the time is up; False if the job ends by itself."""
    for step in steps:
        take(run, step, rules)
        if run.verdict != "more":
            return True
        if run.contended and not rules.believe_delayed:
            raise Contended(f"other processes delayed {run.delayed} of {run.steps} steps")
        if rules.out_of_time(run.step_seconds):
            run.cut = f"after {count_of_steps(run.steps)}"
            return True
    return False


def take(run: Run, step: Step, rules: Rules) -> None:
    """Add a step to a run. Raises TrialError if it shows a failure."""
    seconds, samples = float(step.seconds), step.samples
    index = run.steps
    run.steps += 1
    run.sizes.append(step.size)
    if not (math.isfinite(seconds) and seconds >= LEAST_SECONDS and samples > 0):
        raise NoMeasurement(f"step {index} took {seconds} s for {samples} samples")
    run.step_seconds += seconds
    run.samples = samples
    run.losses.append(step.loss)
    diverged = divergence(run.losses, rules.reference)
    if diverged is not None:
        # Without a reference it is the baseline: nothing can be compared with what it trains.
        raise Diverged(diverged, hopeless=not rules.reference)
    delayed = step.delayed and not rules.delays_itself
    run.delayed += delayed
    run.trace.append((seconds, delayed))
    rules.on_step(index, step, delayed)
    if delayed and not rules.believe_delayed:
        return
    run.counted.append((math.log(seconds / samples), step.size))
    run.logs = levelled(run.counted, run.sizes)
    run.verdict = rules.verdict(run.logs)


def turn_of(place: int, steps: Sequence[tuple[float, bool]]) -> Turn:
    """Steps of a run's ``trace`` as a result keeps them: with four digits."""
    step_seconds = []
    delayed_steps = []
    for index, (seconds, delayed) in enumerate(steps):
        step_seconds.append(float(f"{seconds:.4g}"))
        if delayed:
            delayed_steps.append(index)
    return Turn(place=place, step_seconds=tuple(step_seconds), delayed=tuple(delayed_steps))


def count_of_steps(count: int) -> str:
    """A number of steps in words."""
    if count == 1:
        return "one step"
    return f"{count or 'no'} steps"


def divergence(losses: Sequence[float | None], reference: Sequence[float | None]) -> str | None:
    """Why a loss differs from that of the baseline; None if it does not.

    The same seed and data give nearly the same losses in any precision. A mean over the common
    steps that is off by a third, by more than 0.5, and by more than the losses scatter, is not
    rounding. Later steps may not rise above twice the worst of the baseline.
    """
    last = None
    if losses:
        last = losses[-1]
    if last is None:
        return None
    if not math.isfinite(last):
        name = "infinite"
        if math.isnan(last):
            name = "NaN"
        evidence = f"the loss is {name} in step {len(losses)}"
        if reference:
            return evidence
        return (
            f"{evidence} of the current launch, so no plan can "
            "be compared with it; torch.autograd.set_detect_anomaly(True) shows where it begins"
        )
    magnitudes = []
    for value in reference:
        if value is not None and math.isfinite(value):
            magnitudes.append(abs(value))
    if not magnitudes:
        return None
    worst = max(magnitudes)
    if abs(last) > 2 * worst + 1:
        return (
            f"the loss is {last:.3g} at step {len(losses) - 1}, that "
            f"of the baseline at most {worst:.3g}"
        )
    return _means_differ(losses, reference)


def _means_differ(losses: Sequence[float | None], reference: Sequence[float | None]) -> str | None:
    """That the mean losses of the common steps differ by more than rounding; None if not."""
    compared = []
    of_baseline = []
    for loss, other in zip(losses, reference, strict=False):
        if loss is not None and other is not None and math.isfinite(other):
            compared.append(loss)
            of_baseline.append(other)
    count = len(compared)
    if count < 3:
        return None
    compared_mean = sum(compared) / count
    mean = sum(of_baseline) / count
    off = compared_mean - mean
    squares = 0.0
    for loss, other in zip(compared, of_baseline, strict=True):
        squares += (loss - other - off) ** 2
    scatter = math.sqrt(squares / (count - 1))
    if abs(off) > max(0.33 * abs(mean), 0.5, 4 * scatter / math.sqrt(count)):
        return (
            f"the mean loss of the first {count} steps is {compared_mean:.3g}, that "
            f"of the baseline {mean:.3g}"
        )
    return None


def levelled(steps: Sequence[SizedStep], sizes: Sequence[int]) -> list[float]:
    """The log seconds per sample of each step, converted to the mean of batches of these sizes."""
    if not steps or len(set(sizes)) < 2 or not all(size for _, size in steps):
        return [log for log, _ in steps]
    power = _power(steps)
    mean = math.log(fmean(size**power for size in sizes if size))
    return [log - power * math.log(size) + mean for log, size in steps]


def doubt_of_mean(steps: Sequence[SizedStep], sizes: Sequence[int]) -> float:
    """Variance of the log of a mean step, if batches of other samples have other sizes: from the
    means of ``AT_ONCE`` steps in sequence, if there are enough.
    """
    if not steps or len(set(sizes)) < 2:
        return 0.0
    power = _power(steps)
    each = []
    for size in sizes:
        if size:
            each.append(size**power)
    at_once = 1
    if len(each) >= 3 * AT_ONCE:
        at_once = AT_ONCE
    means = [fmean(each[at : at + at_once]) for at in range(0, len(each) - at_once + 1, at_once)]
    if len(means) > 1:
        return variance(means) / len(means) / fmean(means) ** 2
    return 0.0


def _power(steps: Sequence[SizedStep]) -> float:
    recent = [(math.log(size), log) for log, size in steps[-_MOST_STEPS:] if size]
    slopes = [(_USUAL, _USUAL_WEIGHT)]
    for (x, log), (y, other) in combinations(recent, 2):
        if x != y:
            slopes.append(((other - log) / (y - x), abs(y - x)))
    # The weighted median: the slope at which half of all weight is reached.
    half = sum(weight for _, weight in slopes) / 2
    for slope, weight in sorted(slopes):
        half -= weight
        if half <= 0:
            return slope
    return _USUAL
