"""Words that recur, each said in one place: verdicts, ratios, in what two machines differ."""

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


def times_as_fast(ratio: Interval) -> str:
    """``1.25 times as fast``: 1.25 is never an addition to what there was."""
    return f"{ratio.ratio:.2f} times as fast"


def between(ratio: Interval) -> str:
    """``95 % interval 1.20–1.31``."""
    return f"95 % interval {ratio.low:.2f}–{ratio.high:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is printed first: what the result means, what to do now, and how sure it is.

    ``do`` is a command, or "nothing: ..."; ``when`` is a condition that has to be true before it.
    ``good``: a gain was measured. ``ladder`` is a line for each kind of change in the training.
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
        label = "do now" if self.when is None else self.when
        return f"{label[:1].upper()}{label[1:]}: {self.do}"

    def lines(self) -> tuple[str, str, str]:
        """The three lines."""
        return self.means, self.do_line, f"How sure: {self.sure}"


RESUME = "the same `cputune tune` command with --resume"
"""It goes on with a study; what else was typed (``--study``, ``-o``, the script) names which."""

YOURS = "your current launch"


def verdict_of(result: Result, do: str, context: ClaimContext | None = None) -> Verdict:
    """What a result says: the outcome, the ratio and its interval, and what to do.

    ``do`` is the command that uses the best plan. In another ``context`` than that of the
    measurement no ratio is given as if it held there.
    """
    found = result.claim.in_context(context or ClaimContext())
    speedup = result.speedup
    if not found.applies:
        return _elsewhere(result, found)
    if speedup is None:
        return _not_compared(result)
    sure = f"{between(speedup)}, {count(speedup.pairs, 'pair')} side by side"
    other = YOURS if result.baseline.plan.as_found else result.baseline.plan.describe()
    if speedup.outcome == FASTER:
        means = f"{times_as_fast(speedup)} as {other}: {saved(result, speedup.ratio)}."
        if not speedup.narrow:
            means = f"Faster than {other}, but it was not measured long enough to say how much."
        return Verdict(means=means, do=do, sure=sure, good=True, ladder=ladder_of(result))
    step = result.next_step or NextStep(kind="keep")
    if speedup.outcome == UNDECIDED:
        means = (
            f"Undecided: the best other plan ran {times_as_fast(speedup)} as {other}, and the "
            f"interval {speedup.low:.2f}–{speedup.high:.2f} allows both faster and slower."
        )
        sure = f"not sure: {sure}; {why_undecided(result, speedup)}"
        return Verdict(means=means, do=command_of(step, result), sure=sure, when=step.when)
    means = f"{other[:1].upper()}{other[1:]} is faster than every other plan that was tried"
    if speedup.outcome == EQUIVALENT:
        means = (
            f"{other[:1].upper()}{other[1:]} is as fast as the best other plan, within "
            f"{EQUIVALENCE_MARGIN:.0%}"
        )
    if result.untried:
        means += f"; not tried: {'; '.join(out.what for out in result.untried)}"
    if others := ", ".join(dict.fromkeys(out.what for out in result.left_out)):
        means += f"; left out, with reasons in the report: {others}"
    return Verdict(means=f"{means}.", do=KEEP_THE_LAUNCH, sure=sure)


FEW_PAIRS = 12
"""Fewer pairs than this are named as the reason of a wide interval."""


def why_undecided(result: Result, ratio: Speedup) -> str:
    """Why the interval of a comparison is wide."""
    if result.busy:
        return f"other processes used the CPUs: {', '.join(result.busy)}"
    if ratio.pairs < FEW_PAIRS:
        return f"{count(ratio.pairs, 'pair')} are few"
    return "the runs of one plan differ by more than the plans do"


def _elsewhere(result: Result, found: InContext) -> Verdict:
    """What is said in another context than the one of the measurement."""
    speedup = result.speedup
    means = f"Measured {found.measured}"
    sure = "nothing was measured here"
    if speedup is None:
        means += f": not compared, {result.not_compared}"
    else:
        means += f": {_in_a_word(speedup)}"
        sure = f"there {between(speedup)}, {count(speedup.pairs, 'pair')}; {sure}"
    return Verdict(
        means=f"{means}. Not measured {', '.join(found.differs)}.",
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
"""Each outcome in a few words, for tables."""


def _not_compared(result: Result) -> Verdict:
    """Why there is no ratio, what to do now, and what single trials showed."""
    step = result.next_step or NextStep()
    do = command_of(step, result)
    if result.disturbed:
        others = f" by {', '.join(result.busy)}" if result.busy else " by other processes"
        return Verdict(
            means=f"Not compared: the machine was kept busy{others}.",
            do=do,
            sure=f"not sure: {result.not_compared}",
            when=step.when,
        )
    return Verdict(
        means=f"Not compared with {YOURS}: {result.not_compared}.",
        do=do,
        sure=f"not sure: {single_trials(result)}",
        when=step.when,
    )


def single_trials(result: Result) -> str:
    """What trials saw that nothing was compared beside: ``single trials: 8.6 and 10.4 samples/s``.

    Today's launch is named first, then the fastest other plan.
    """
    seen = [result.baseline.samples_per_second.centre]
    others = [
        trial.samples_per_second.centre
        for trial in result.trials
        if trial.state == COMPLETED
        and trial.samples_per_second is not None
        and trial.plan != result.baseline.plan
    ]
    if not others:
        return "only one plan gave a number" if result.trials else "nothing was measured"
    seen.append(max(others))
    return f"single trials: {' and '.join(map(figure, seen))} samples/s; not compared"


def saved(result: Result, ratio: float) -> str:
    """What the gain means to who trains: the time of the whole training, and what it costs.

    It counts training steps alone, at the speeds that were measured.
    """
    price = result.price_per_hour
    whole = result.time_to_end()
    words = training_time(result, whole, ratio)
    if whole is not None and result.seconds is not None:
        words += f"; the search took {duration(result.seconds)}"
    if price is not None:
        today, best = (whole.today, whole.best) if whole else (3600.0, 3600.0 / ratio)
        cost = price / 3600 * max(1, len(result.hosts))
        words += f"; {cost * best:.2f} instead of {cost * today:.2f} at {price:g} an hour"
    return words


def training_time(result: Result, whole: TimeToEnd | None, ratio: float) -> str:
    """What a ratio makes of the time that the training takes."""
    if whole is None:
        return f"an hour of training takes {60 / ratio:.0f} min"
    epochs = result.workload.epochs
    job = "your training" if epochs is None else f"your {epochs:g} epochs"
    job = "your epoch" if epochs == 1 else job
    return f"{job}: {duration(whole.best)} instead of {duration(whole.today)}, training steps alone"


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``1 h 5 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def slower_by(text: str) -> float:
    """A share that is allowed to be lost, of ``5%`` or ``0.05``. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,2}(?:\.\d+)?)\s*(%?)", text.strip())
    share = float(match[1]) if match else -1.0
    if match and match[2]:
        share /= 100
    if not 0 <= share < 1:
        raise UsageError(f"not a share: {text!r}", hint="--fail-if-slower 5%")
    return share


def surely_slower(ratio: Interval | None, share: float) -> bool:
    """Whether more than this share is lost beyond doubt: the whole interval lies below.

    So a machine that wanders does not fail a build, and a real loss does as soon as it is told.
    """
    return ratio is not None and ratio.high < 1 - share


TUNE_AGAIN = "tune again: what is fastest there may be another plan by now"


def machine_difference(host: Mapping[str, object], facts: HostFacts) -> str | None:
    """In what the machine of a result differs from this one; None where it does not.

    What either of them does not say is not compared.
    """
    return host_difference(host, host_fingerprint(facts))


def changed_since(result: Result, facts: HostFacts) -> tuple[str, ...]:
    """What has changed on this machine since it was tuned, so that another plan may be best."""
    found = list(filter(None, [machine_difference(result.host, facts)]))
    pairs = [
        ("kernel", result.kernel, facts.settings.kernel),
        ("microcode", result.microcode, facts.cpu.microcode),
    ]
    for name in DECIDES_SPEED:
        package = facts.package(name)
        pairs.append((name, result.versions.get(name), package.version if package else None))
    # What stands behind + is the build: 2.13.0+cpu is 2.13.0.
    cut = (
        (n, then.partition("+")[0], now.partition("+")[0]) for n, then, now in pairs if then and now
    )
    known = ((name, then, now) for name, then, now in cut if then != now)
    return (*found, *(f"{name} {then} then, {now} now" for name, then, now in known))


def missing_cpus(plan: Plan, facts: HostFacts) -> str | None:
    """The CPUs of a plan that this process may not use, as a list; None where it may use all."""
    wanted = {cpu for cpus in (*plan.cpus, *plan.ccl_cpus) for cpu in cpus}
    return cpulist.render(wanted - set(facts.topology.allowed)) or None
