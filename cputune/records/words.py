"""Words that recur, each said in one place: verdicts, ratios, in what two machines differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cputune.errors import UsageError
from cputune.host.facts import HostFacts
from cputune.plans.plan import Plan
from cputune.records.result import COMPLETED, Result, TimeToEnd, host_fingerprint
from cputune.text import cpulist
from cputune.text.plain import count, figure


class Interval(Protocol):
    """A ratio with its interval, whoever measured it."""

    @property
    def ratio(self) -> float:
        """How many times as fast."""

    @property
    def low(self) -> float:
        """Lower end of the interval."""

    @property
    def high(self) -> float:
        """Upper end of the interval."""


def times_as_fast(ratio: Interval) -> str:
    """``1.25 times as fast``: 1.25 is never an addition to what there was."""
    return f"{ratio.ratio:.2f} times as fast"


def between(ratio: Interval) -> str:
    """``95 % interval 1.20–1.31``."""
    return f"95 % interval {ratio.low:.2f}–{ratio.high:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What stands before everything else: what it means, what to do now, and how sure it is.

    ``good``: something was gained.
    """

    means: str
    do: str
    sure: str
    good: bool = False

    def lines(self) -> tuple[str, str, str]:
        """The three lines."""
        return self.means, f"Do now: {self.do}", f"How sure: {self.sure}"


NOTHING_TO_DO = "nothing: keep the launch that you have"
RESUME = "the same `cputune tune` command with --resume"
"""It goes on with a study; what else was typed (``--study``, ``-o``, the script) names which."""

MEASURE_AGAIN = f"{RESUME}, when the machine is quiet"


def verdict_of(result: Result, do: str) -> Verdict:
    """The outcome of a study; a factor only where pairs were measured, and where it is known well.

    ``do`` is the one command that puts the best plan to use, where there is one to use.
    """
    speedup = result.speedup
    if speedup is None:
        return _not_compared(result)
    sure = f"{between(speedup)}, {count(speedup.pairs, 'pair')} side by side"
    today = "today's launch" if result.baseline.plan.as_found else "the plan compared with"
    if result.best.plan == result.baseline.plan:
        means = "Today's launch is as fast as anything that was tried."
        if result.untried:
            means = f"{means[:-1]}; not tried: {'; '.join(out.what for out in result.untried)}."
        if others := ", ".join(dict.fromkeys(out.what for out in result.left_out)):
            means = f"{means[:-1]}; left out, with reasons in the report: {others}."
        if not speedup.narrow:
            means = f"Nothing was surely faster than {today}, and the speeds are not sure."
        return Verdict(means=means, do=NOTHING_TO_DO, sure=sure)
    if not speedup.narrow:
        means = f"Faster than {today}, but by how much could not be measured."
        return Verdict(means=means, do=do, sure=sure)
    means = f"{times_as_fast(speedup)} as {today}: {saved(result, speedup.ratio)}."
    return Verdict(means=means, do=do, sure=sure, good=speedup.significant)


def _not_compared(result: Result) -> Verdict:
    """What is said where there is no ratio: why, what to do now, and what single trials saw."""
    if result.disturbed:
        return Verdict(
            means="The machine was not quiet, so nothing is said of how much faster a plan is.",
            do=result.to_compare or MEASURE_AGAIN,
            sure=f"not at all: {result.not_compared}",
        )
    return Verdict(
        means=f"No plan was compared with today's launch: {result.not_compared}.",
        do=result.to_compare or MEASURE_AGAIN,
        sure=f"not at all: {single_trials(result)}",
    )


def single_trials(result: Result) -> str:
    """What trials saw that nothing was compared beside: ``single trials: 8.6 and 10.4 samples/s``.

    Today's launch is named first, then the fastest other plan.
    """
    seen = [result.baseline.samples_per_second.median]
    others = [
        trial.samples_per_second.median
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


def factor(ratio: Interval) -> str:
    """``×1.25 (1.20–1.31)``: for a table."""
    return f"×{ratio.ratio:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def section(host: Mapping[str, object], name: str) -> Mapping[str, Any]:
    """A part of a host document; empty where there is none."""
    found = host.get(name)
    return found if isinstance(found, Mapping) else {}


_COMPARED = (
    ("cpu", "model_name", "processor"),
    ("topology", "sockets", "sockets"),
    ("topology", "physical_cores", "cores"),
    ("topology", "threads_per_core", "threads per core"),
    ("topology", "logical_cpus", "CPUs"),
)


def machine_difference(host: Mapping[str, object], facts: HostFacts) -> str | None:
    """In what the machine of a result differs from this one; None where it does not.

    What either of them does not say is not compared.
    """
    return host_difference(host, host_fingerprint(facts))


_DECIDES_SPEED = ("torch", "transformers", "accelerate", "intel_extension_for_pytorch")


def changed_since(result: Result, facts: HostFacts) -> tuple[str, ...]:
    """What has changed on this machine since it was tuned, so that another plan may be best."""
    found = list(filter(None, [machine_difference(result.host, facts)]))
    pairs = [
        ("kernel", result.kernel, facts.settings.kernel),
        ("microcode", result.microcode, facts.cpu.microcode),
    ]
    for name in _DECIDES_SPEED:
        package = facts.package(name)
        pairs.append((name, result.versions.get(name), package.version if package else None))
    # What stands behind + is the build: 2.13.0+cpu is 2.13.0.
    cut = (
        (n, then.partition("+")[0], now.partition("+")[0]) for n, then, now in pairs if then and now
    )
    known = ((name, then, now) for name, then, now in cut if then != now)
    return (*found, *(f"{name} {then} then, {now} now" for name, then, now in known))


def host_difference(
    there: Mapping[str, object],
    here: Mapping[str, object],
    *,
    names: tuple[str, str] = ("there", "here"),
) -> str | None:
    """The first of these facts in which two machines differ; ``names`` is how they are called."""
    for group, key, words in _COMPARED:
        a, b = section(there, group).get(key), section(here, group).get(key)
        if a is not None and b is not None and a != b:
            return f"{words} {a} {names[0]}, {b} {names[1]}"
    return None


def untold(host: Mapping[str, object]) -> tuple[str, ...]:
    """Those of these facts that a machine does not say, in words."""
    return tuple(words for group, key, words in _COMPARED if section(host, group).get(key) is None)


def missing_cpus(plan: Plan, facts: HostFacts) -> str | None:
    """The CPUs of a plan that this process may not use, as a list; None where it may use all."""
    wanted = {cpu for cpus in (*plan.cpus, *plan.ccl_cpus) for cpu in cpus}
    return cpulist.render(wanted - set(facts.topology.allowed)) or None
