"""``cputune report``: a result as one page of HTML that needs no network.

This module says what the page shows and how long its bars are, as plain values; ``page.html.j2``
says how it looks. Three pictures show what no table does: which intervals overlap, who runs on
which core, and the times of the steps in their order. They are elements of the page that need no
script, with their numbers in words beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.util import find_spec
from statistics import median
from typing import Any, TypeVar

from cputune import __version__, cpulist
from cputune.errors import MissingPackageError
from cputune.host.interpreter import install_tuning
from cputune.plan import Plan
from cputune.portrait import topology_of
from cputune.report.machine import picture
from cputune.report.show import (
    ResultToShow,
    allowed_cpus,
    basis,
    change_rows,
    install_command,
    interval,
    places,
    profile_lines,
    speeds,
)
from cputune.report.tuning import fastest_first, outcome
from cputune.report.writing import Rows, source_urls
from cputune.result import COMPLETED, Result, Throughput, Trial
from cputune.text import figure, visible

MOST_ROWS = 30
MOST_LETTERS = 300
"""How long the reason of a failure may be on the page; the result file has all of it."""
MOST_FINDINGS = 100
PHONE_COLUMNS = 40
MOST_PARTIES = 64
MOST_POINTS = 240
"""How many points a line has at most; a phone has as many pixels."""
LINE_ROOM = 1.5
"""Where the scale of steps ends, as a multiple of the slowest median: a step that was delayed for
longer is cut off."""
LEAST_SHARE = 0.005

_BRINGS_IN = ("--knobs", "apt-get", "pip install")

Item = TypeVar("Item")
Bar = dict[str, Any]


def page(result: Result, file: str = "cputune.json") -> str:
    """The whole page. ``file`` is where the result lies, for the commands to copy.

    Raises MissingPackageError without jinja2.
    """
    if find_spec("jinja2") is None:
        raise MissingPackageError(
            "the report needs jinja2, which is not installed", hint=install_tuning(stack=False)
        )
    import jinja2

    template = resources.files("cputune.report").joinpath("page.html.j2")
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda said: visible(said) if type(said) is str else said,
    )
    drawn = environment.from_string(template.read_text(encoding="utf-8"))
    text: str = drawn.render(story(result, file), version=__version__)
    return text


def story(result: Result, file: str) -> dict[str, Any]:
    """What the page shows, part by part, as plain values."""
    shown = ResultToShow(result=result, file=file)
    told: dict[str, Any] = {
        "result": result,
        "verdict": shown.verdict(),
        "speeds": speeds(result),
        "changes": change_rows(result),
        "times": time_rows(result),
        "profile_lines": list(profile_lines(result)),
        "machine": _machine(result),
        "would_pay": [one.words for one in (*result.untried, *result.done)],
        "left_out": _left_out(result),
        "launch": shown.launch(),
        "plans": list(_plans(result)),
        "left": max(0, len(result.trials) - MOST_ROWS),
        "lines": _lines(result),
        "failed": [
            f"{run.plan.describe()}: {(run.reason or 'no number')[:MOST_LETTERS]}"
            for run in result.confirmation
            if run.samples_per_second is None
        ][:MOST_ROWS],
        "findings": [
            (one, [url for url in source_urls(one.source) if url.startswith("https://")])
            for one in (result.findings or ())[:MOST_FINDINGS]
        ],
        "basis": basis(result),
        "install": install_command(result.versions),
    }
    return {**told, "missing": _missing(result, told)}


def _missing(result: Result, told: dict[str, Any]) -> list[str]:
    """The parts that the page lacks, and why."""
    unasked = "nobody asked the doctor; cputune doctor asks now"
    reasons = (
        (not told["changes"].rows, "what to change: nothing, keep the launch that you have"),
        (not told["times"].rows, "where the time of a step goes: no steps were profiled"),
        (not told["machine"]["drawn"], "the cores: the result does not say which the machine has"),
        (not told["lines"], "steps side by side: the result has none, only those of trials"),
        (result.findings is None, f"what the doctor found: {unasked}"),
        (result.findings == (), "what the doctor found: nothing"),
    )
    return [why for is_missing, why in reasons if is_missing]


def time_rows(result: Result) -> Rows:
    """The time of a step of today's launch and of the best plan, by what it is spent on.

    Both take as many samples as a step of today's launch; where their number is not known, it is
    the time of one sample. Their speeds are those that were measured without the profiler.
    """
    profile, job = result.profile, result.workload
    # Padding is a share of tokens, and not of time.
    today = {kind: share for kind, share in job.time_shares.items() if kind != "padding"}
    best = dict(profile.shares) if profile and profile.plan == result.best.plan else {}
    if best and result.best.plan == result.baseline.plan:
        today, best = best, {}
    samples = job.global_batch_size
    if job.batch_per_rank is not None:
        samples = job.batch_per_rank * result.baseline.plan.world_size
    columns = {
        name: (shares, (samples or 1) / side.samples_per_second.median)
        for name, shares, side in (("today", today, result.baseline), ("best", best, result.best))
        if shares and side.samples_per_second.median > 0
    }
    most = {kind: 0.0 for shares, _ in columns.values() for kind in shares}
    for shares, seconds in columns.values():
        for kind, share in shares.items():
            most[kind] = max(most[kind], share * seconds if share >= LEAST_SHARE else 0.0)
    whole = f"a step of {samples} samples" if samples else "a sample"
    rows = [(whole, *(_time(seconds) for _, seconds in columns.values()))]
    for kind in sorted((kind for kind in most if most[kind]), key=lambda kind: -most[kind]):
        shares_of = [(shares.get(kind, 0.0), seconds) for shares, seconds in columns.values()]
        rows.append((kind, *(f"{_time(s * seconds)} ({s:.0%})" for s, seconds in shares_of)))
    return Rows(headings=("", *columns), rows=tuple(rows) if columns else ())


def _time(seconds: float) -> str:
    return f"{figure(1000 * seconds)} ms" if seconds < 1 else f"{figure(seconds)} s"


def _machine(result: Result) -> dict[str, Any]:
    """The picture of the terminal, as wide as a phone, with the CPUs of the best plan's ranks."""
    parties = [
        (who, cpulist.render(cpus) or "none") for who, cpus in places(result.best.plan).items()
    ]
    known = any(place.cores for place in result.places)
    topology = topology_of(result.places, allowed_cpus(result))
    bound = {} if result.best.plan.as_found else places(result.best.plan)
    drawn = picture(topology, bound=bound, width=PHONE_COLUMNS) if known else []
    return {
        "drawn": "\n".join(drawn),
        "parties": parties[:MOST_PARTIES],
        "more_parties": max(0, len(parties) - MOST_PARTIES),
    }


def _left_out(result: Result) -> list[tuple[str, str]]:
    """What was left out and why; first what a command would add to the search."""
    said = dict.fromkeys((out.what, out.why) for out in result.left_out)
    return sorted(said, key=lambda one: not any(word in one[1] for word in _BRINGS_IN))


def side_by_side(result: Result) -> dict[Plan, Throughput]:
    """What the confirmation measured of each plan that took part in it, the last block first."""
    runs = [(run.plan, run.samples_per_second) for run in result.confirmation]
    found = {plan: rate for plan, rate in runs if rate is not None}
    if found:
        for side in (result.best, result.baseline):
            found[side.plan] = side.samples_per_second
    return found


def _plans(result: Result) -> Iterator[Bar]:
    """The plans, those that were confirmed first; today's launch is among them, however slow."""
    confirmed = side_by_side(result)

    def order(trial: Trial) -> tuple[int, float]:
        sure = confirmed.get(trial.plan)
        return fastest_first(trial) if sure is None else (-1, -sure.median)

    ordered = sorted(result.trials, key=order)
    today = [t for t in ordered[MOST_ROWS:] if t.plan == result.baseline.plan][:1]
    shown = [*ordered[:MOST_ROWS], *today]
    measured = {t.number: t.samples_per_second for t in shown if t.state == COMPLETED}
    rates = [confirmed.get(t.plan) or measured.get(t.number) for t in shown]
    most = max((rate.high for rate in rates if rate is not None), default=0.0)
    sides = [("today", result.baseline)]
    sides += [] if result.disturbed else [("best", result.best)]
    for trial, rate in zip(shown, rates, strict=True):
        yield {
            "number": trial.number,
            "plan": trial.plan.describe(),
            "marks": [name for name, side in sides if trial.plan == side.plan],
            "kind": _kind(trial.plan, result),
            "bar": None if rate is None else _bar(rate, most),
            "confirmed": trial.plan in confirmed,
            "origin": trial.origin,
            "remark": "" if trial.state == COMPLETED else outcome(trial)[:MOST_LETTERS],
        }


def _bar(rate: Throughput, most: float) -> Bar:
    """A speed as a bar with its interval: the ends of both, in hundredths of the width."""
    width, low, high = (
        round(100 * value / most, 2) if most > 0 else 0.0
        for value in (rate.median, rate.low, rate.high)
    )
    return {
        "width": min(100.0, width),
        "low": low,
        "reach": round(high - low, 2),
        "rate": figure(rate.median),
        "interval": interval(rate),
    }


def _lines(result: Result) -> list[dict[str, Any]]:
    """The steps of each confirmed plan in their order, as a line with its median."""
    taken: dict[Plan, list[tuple[float, bool]]] = {}
    for run in sorted(result.confirmation, key=lambda run: run.round):
        for turn in run.taken:
            own = taken.setdefault(run.plan, [])
            own += [(seconds, i in turn.delayed) for i, seconds in enumerate(turn.step_seconds)]
    usual = {
        plan: median([s for s, late in own if not late] or [s for s, _ in own])
        for plan, own in taken.items()
        if own
    }
    usual = {plan: seconds for plan, seconds in usual.items() if seconds > 0}
    most = LINE_ROOM * max(usual.values(), default=0.0)

    def height(seconds: float) -> float:
        """The height of a value: 0 at the foot, ``most`` at the top."""
        return round(max(0.0, 100 - 100 * seconds / most), 1)

    def points(steps: list[tuple[float, bool]]) -> str:
        some = thinned(steps, MOST_POINTS)
        wide = 1000 / max(1, len(some) - 1)
        return " ".join(f"{round(i * wide, 1)},{height(s)}" for i, (s, _) in enumerate(some))

    return [
        {
            "plan": plan.describe(),
            "kind": _kind(plan, result),
            "median": _time(seconds),
            "most": _time(most),
            "height": height(seconds),
            "steps": len(taken[plan]),
            "delayed": sum(late for _, late in taken[plan]),
            "points": points(taken[plan]),
        }
        for plan, seconds in sorted(usual.items(), key=lambda one: one[1])
    ]


def _kind(plan: Plan, result: Result) -> str:
    """Which colour a plan has, wherever it is drawn: today's launch its own, best or not."""
    if plan == result.baseline.plan:
        return "today"
    return "best" if plan == result.best.plan else "other"


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many of the values, evenly chosen, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]
