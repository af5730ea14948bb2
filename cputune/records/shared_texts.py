"""Texts that several outputs share: verdicts, ratios, differences between machines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cputune.errors import UsageError
from cputune.host.facts import HostFacts
from cputune.plans.plan import Plan
from cputune.records.claims import (
    DECIDES_SPEED,
    EQUIVALENCE_MARGIN,
    EQUIVALENT,
    FASTER,
    NOT_COMPARED,
    SLOWER,
    UNDECIDED,
    ClaimContext,
    InContext,
    Interval,
    Outcome,
    Speedup,
    host_difference,
    host_fingerprint,
)
from cputune.records.ladder import ladder_of
from cputune.records.next_command import KEEP_THE_LAUNCH, NextStep, command_of
from cputune.records.result import COMPLETED, Result, TimeToEnd
from cputune.text import cpulist
from cputune.text.plain import count, figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The first lines of the output: what the result means, what to do now, and how sure it is.

    ``do`` is a command, or "nothing: ...". ``when`` is a condition for it. ``good``: a gain was
    measured. ``ladder`` has a line for each kind of change in the training.
    """

    means: str
    do: str
    sure: str
    when: str | None = None
    good: bool = False
    ladder: tuple[str, ...] = ()

    @property
    def do_line(self) -> str:
        """``Do now: COMMAND``, or ``When the machine is quiet: COMMAND``."""
        label = self.when or "do now"
        return f"{label[:1].upper()}{label[1:]}: {self.do}"

    def lines(self) -> tuple[str, str, str]:
        return self.means, self.do_line, f"How sure: {self.sure}"


# Within a note: the time was too short for some plans, and the command that tries more.
OTHERS_MAY_BE_FASTER = ", and others may be faster: "

# Knobs that are named in the verdict; the report has all of them.
MOST_NAMED = 3


def times_as_fast(ratio: Interval) -> str:
    """``1.25 times as fast``; "1.25 times faster" would be ambiguous."""
    return f"{ratio.ratio:.2f} times as fast"


def between(ratio: Interval) -> str:
    """``95 % interval 1.20–1.31``."""
    return f"95 % interval {ratio.low:.2f}–{ratio.high:.2f}"


# How a study is continued.
RESUME = "the same `cputune tune` command with --resume"

YOURS = "your current launch"


def verdict_of(result: Result, do: str, context: ClaimContext | None = None) -> Verdict:
    """The verdict: the outcome, the ratio with its interval, and what to do.

    ``do`` is the command that uses the best plan. In another ``context`` than that of the
    measurement no ratio is given.
    """
    claim = result.claim.in_context(context or ClaimContext())
    speedup = result.speedup
    if not claim.applies:
        return _elsewhere(result, claim)
    if speedup is None:
        return _not_compared(result)
    means, sure = how_fast(result)
    if speedup.outcome == FASTER:
        return Verdict(means=means, do=do, sure=sure, good=True, ladder=ladder_of(result))
    if speedup.outcome == UNDECIDED:
        step = result.next_step or NextStep(kind="keep")
        return Verdict(means=means, do=command_of(step, result), sure=sure, when=step.when)
    return Verdict(means=means, do=KEEP_THE_LAUNCH, sure=sure)


def how_fast(result: Result) -> tuple[str, str]:
    """What was found about the speed, and how sure it is."""
    speedup = result.speedup
    if speedup is None:
        return _why_not_compared(result)
    sure = f"{between(speedup)}, {count(speedup.pairs, 'pair')} side by side"
    other = YOURS
    if not result.baseline.plan.as_found:
        other = result.baseline.plan.describe()
    if speedup.outcome == FASTER:
        means = f"{times_as_fast(speedup)} as {other}: {saved(result, speedup.ratio)}."
        if not speedup.narrow:
            means = f"Faster than {other}, but it was not measured long enough to say how much."
        return means, sure
    if speedup.outcome == UNDECIDED:
        means = (
            f"Undecided: the best other plan ran {times_as_fast(speedup)} as {other}, and the "
            f"interval {speedup.low:.2f}–{speedup.high:.2f} allows both faster and slower."
        )
        return means, f"{sure}; {why_undecided(result, speedup)}"
    means = f"{other[:1].upper()}{other[1:]} is faster than every other plan that was tried"
    if speedup.outcome == EQUIVALENT:
        means = (
            f"{other[:1].upper()}{other[1:]} is as fast as the best other plan, within "
            f"{EQUIVALENCE_MARGIN:.0%}"
        )
    if result.untried:
        means += f"; not tried: {'; '.join(out.what for out in result.untried)}"
    left_out = list(dict.fromkeys(out.what for out in result.left_out))
    if left_out:
        others = ", ".join(left_out[:MOST_NAMED])
        if len(left_out) > MOST_NAMED:
            others += f" and {len(left_out) - MOST_NAMED} more"
        means += f"; left out, with reasons in the report: {others}"
    return f"{means}.", sure


# A wide interval is explained by the number of pairs if there are fewer.
FEW_PAIRS = 12


def why_undecided(result: Result, ratio: Speedup) -> str:
    if result.busy:
        return f"other processes used the CPUs: {', '.join(result.busy)}"
    if ratio.pairs < FEW_PAIRS:
        return f"{count(ratio.pairs, 'pair')} are few"
    return "the runs of one plan differ by more than the plans do"


def _elsewhere(result: Result, claim: InContext) -> Verdict:
    speedup = result.speedup
    means = f"Measured {claim.measured}"
    sure = "nothing was measured here"
    if speedup is None:
        means += f": not compared, {result.not_compared}"
    else:
        means += f": {_in_a_word(speedup)}"
        sure = f"there {between(speedup)}, {count(speedup.pairs, 'pair')}; {sure}"
    return Verdict(
        means=f"{means}. Not measured {', '.join(claim.differs)}.",
        do=command_of(NextStep(kind="tune"), result),
        sure=sure,
    )


def _in_a_word(ratio: Speedup) -> str:
    if ratio.outcome == FASTER and ratio.narrow:
        return f"{times_as_fast(ratio)} as the launch that it was compared with"
    return OUTCOME_WORDS[ratio.outcome]


OUTCOME_WORDS: Mapping[Outcome, str] = {
    FASTER: "faster",
    EQUIVALENT: "equivalent",
    SLOWER: "no plan was faster",
    UNDECIDED: "undecided",
    NOT_COMPARED: "not compared",
}


def _not_compared(result: Result) -> Verdict:
    """The verdict without a ratio: why, what to do now, and what single trials showed."""
    step = result.next_step or NextStep()
    do = command_of(step, result)
    means, sure = how_fast(result)
    return Verdict(means=means, do=do, sure=sure, when=step.when)


def _why_not_compared(result: Result) -> tuple[str, str]:
    if not result.disturbed:
        return f"Not compared with {YOURS}: {result.not_compared}.", single_trials(result)
    others = " by other processes"
    if result.busy:
        others = f" by {', '.join(result.busy)}"
    return f"Not compared: the machine was kept busy{others}.", result.not_compared or ""


def single_trials(result: Result) -> str:
    """``single trials: 8.6 and 10.4 samples/s``: the baseline, then the fastest other plan."""
    rates = [result.baseline.samples_per_second.centre]
    others = []
    for trial in result.trials:
        if (
            trial.state == COMPLETED
            and trial.samples_per_second is not None
            and trial.plan != result.baseline.plan
        ):
            others.append(trial.samples_per_second.centre)
    if not others:
        if result.trials:
            return "only one plan was measured"
        return "nothing was measured"
    rates.append(max(others))
    return f"single trials: {' and '.join(map(figure, rates))} samples/s; not compared"


def saved(result: Result, ratio: float) -> str:
    """The gain for the user: the time of the whole training (steps alone), and its cost."""
    price = result.price_per_hour
    to_end = result.time_to_end()
    text = training_time(result, to_end, ratio)
    if to_end is not None and result.seconds is not None:
        text += f"; the search took {duration(result.seconds)}"
    if price is not None:
        baseline_seconds, best_seconds = 3600.0, 3600.0 / ratio
        if to_end:
            baseline_seconds, best_seconds = to_end.baseline, to_end.best
        cost = price / 3600 * max(1, len(result.hosts))
        before, after = cost * baseline_seconds, cost * best_seconds
        text += f"; {after:.2f} instead of {before:.2f} at {price:g} an hour"
    return text


def training_time(result: Result, to_end: TimeToEnd | None, ratio: float) -> str:
    if to_end is None:
        return f"an hour of training takes {60 / ratio:.0f} min"
    epochs = result.workload.epochs
    if epochs is None:
        job = "your training"
    elif epochs == 1:
        job = "your epoch"
    else:
        job = f"your {epochs:g} epochs"
    best, baseline = duration(to_end.best), duration(to_end.baseline)
    return f"{job}: {best} instead of {baseline}, training steps alone"


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``1 h 5 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def exactly(seconds: float) -> str:
    """A time limit without rounding: ``45 s``, ``2 min 30 s``, ``1 h 30 min``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"


def slower_by(text: str) -> float:
    """An allowed loss of speed, ``5%`` or ``0.05``, as a share. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,2}(?:\.\d+)?)\s*(%?)", text.strip())
    share = -1.0
    if match:
        share = float(match[1])
    if match and match[2]:
        share /= 100
    if not 0 <= share < 1:
        raise UsageError(f"{text!r} is not a share", hint="--fail-if-slower 5%")
    return share


def slower_beyond(ratio: Interval | None, share: float) -> bool:
    """Whether the whole interval is below 1 by more than this share: noise does not fail a
    build.
    """
    return ratio is not None and ratio.high < 1 - share


TUNE_AGAIN = "tune again: another plan may be the fastest now"


def machine_difference(host: Mapping[str, object], facts: HostFacts) -> str | None:
    """Return in what the machine of a result differs from this one, or None."""
    return host_difference(host, host_fingerprint(facts))


def changed_since(result: Result, facts: HostFacts) -> tuple[str, ...]:
    """What changed on this machine since it was tuned and may change the best plan."""
    changes = []
    machine = machine_difference(result.host, facts)
    if machine:
        changes.append(machine)
    versions = [
        ("kernel", result.kernel, facts.settings.kernel),
        ("microcode", result.microcode, facts.cpu.microcode),
    ]
    for name in DECIDES_SPEED:
        package = facts.package(name)
        installed = None
        if package:
            installed = package.version
        versions.append((name, result.versions.get(name), installed))
    for name, then, now in versions:
        if not then or not now:
            continue
        # The build behind + does not matter: 2.13.0+cpu is 2.13.0.
        then, now = then.partition("+")[0], now.partition("+")[0]
        if then != now:
            changes.append(f"{name} {then} → {now}")
    return tuple(changes)


def missing_cpus(plan: Plan, facts: HostFacts) -> str | None:
    """The CPUs of a plan that this process may not use; None if it may use all."""
    wanted: set[int] = set()
    for cpus in plan.cpus + plan.ccl_cpus:
        wanted.update(cpus)
    return cpulist.render(wanted - set(facts.topology.allowed)) or None
