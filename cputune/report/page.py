"""``cputune report``: a result as one page of HTML that needs no network.

Here stands what the page says and how long its bars are, as plain values; how it looks stands in
``page.html.j2``. Every picture is made of elements of the page: it is as wide as there is room,
has its numbers in words beside it, and needs no script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from importlib.util import find_spec
from itertools import accumulate, groupby
from statistics import median
from typing import Any, TypeVar

from cputune import __version__, cpulist
from cputune.errors import MissingPackageError
from cputune.facts import MEMORY_WORDS
from cputune.host.interpreter import install_tuning
from cputune.plan import Plan
from cputune.portrait import Place
from cputune.report.diagnosis import source_urls
from cputune.report.summary import (
    Summary,
    allowed_cpus,
    install_command,
    launch_commands,
    places,
    profile_lines,
    summary_of,
    tune_command,
    worth_words,
)
from cputune.report.tuning import fastest_first, outcome
from cputune.result import FAILED, PRUNED, Profile, Result, Throughput, Trial
from cputune.text import figure, visible

MOST_ROWS = 30
MOST_LETTERS = 300
"""Of a reason; the result file holds the whole."""
MOST_FINDINGS = 100
MOST_CORES = 1024
"""Above that nobody counts boxes any more."""
MOST_PARTIES = 64
MOST_POINTS = 240
"""Of a line; a phone has as many pixels."""
RANK_COLORS = 8
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
    text: str = drawn.render(**story(result, file), version=__version__)
    return text


def story(result: Result, file: str) -> dict[str, Any]:
    """What the page says, part by part, as plain values."""
    said = summary_of(result, file)
    now, files = launch_commands(file, result.best.plan.nodes)
    install = install_command(said.versions)
    found = result.findings
    return {
        "result": result,
        "said": said,
        "quiet": not result.disturbed,
        "sides": list(_sides(result, said)),
        "steps_of_change": list(_waterfall(said)),
        "times": [_time(profile, result) for profile in (result.profile,) if profile],
        "profile_lines": profile_lines(result),
        "machine": _machine(result),
        "not_tried": _not_tried(result),
        "plans": list(_plans(result)),
        "left": max(0, len(result.trials) - MOST_ROWS),
        "lines": _lines(result),
        "failed": [
            f"{run.plan.describe()}: {(run.reason or 'no number')[:MOST_LETTERS]}"
            for run in result.confirmation
            if run.samples_per_second is None
        ][:MOST_ROWS],
        "commands": {"now": now, "files": files, "again": tune_command(result), "install": install},
        "findings": [
            (one, [url for url in source_urls(one.source) if url.startswith("https://")])
            for one in (found or ())[:MOST_FINDINGS]
        ],
        "asked_doctor": found is not None,
        "study": (*said.work, *said.study),
        "worth_words": worth_words,
        "MOST_LETTERS": MOST_LETTERS,
    }


def interval(rate: Throughput) -> str:
    """``31.1 to 31.8``."""
    return f"{figure(rate.low)} to {figure(rate.high)}"


def _bar(rate: Throughput, most: float) -> Bar:
    """A speed as a bar with its interval: where each ends, in hundredths of the width."""

    def at(value: float) -> float:
        return round(min(100.0, max(0.0, 100 * value / most)), 2) if most > 0 else 0.0

    return {
        "width": at(rate.median),
        "low": at(rate.low),
        "reach": round(max(0.0, at(rate.high) - at(rate.low)), 2),
        "rate": figure(rate.median),
        "interval": interval(rate),
    }


def _sides(result: Result, said: Summary) -> Iterator[Bar]:
    """Today's launch, and the best plan where it is another, as two bars."""
    before = "Today" if said.today.plan.as_found else "Compared with"
    sides = [("today", before, said.today)]
    if said.nothing_to_change:
        also = "" if result.disturbed else ", and the recommendation"
        sides[0] = ("today", before + also, said.today)
    else:
        sure = ("best", "Best") if not result.disturbed else ("other", "Perhaps faster")
        sides.append((*sure, said.best))
    most = max(side.samples_per_second.high for *_, side in sides)
    for kind, label, side in sides:
        bar = _bar(side.samples_per_second, most)
        yield {**bar, "kind": kind, "label": label, "plan": side.plan.describe()}


def _waterfall(said: Summary) -> Iterator[Bar]:
    """Each change as a step from today's speed to the best: where its bar begins and ends."""
    speeds, speed = [1.0], 1.0
    for change in said.changes:
        speed *= change.worth.ratio if change.worth else 1.0
        speeds.append(speed)
    most = max(speeds)
    for number, change in enumerate(said.changes):
        first, second = sorted(speeds[number : number + 2])
        known = change.worth is not None and most > 0
        yield {
            "change": change,
            "left": round(100 * first / most, 2) if known else 0,
            "width": round(max(0.6, 100 * (second - first) / most), 2) if known else 0,
            "slower": change.worth is not None and change.worth.ratio < 1,
        }


def _time(profile: Profile, result: Result) -> dict[str, Any]:
    """The time of a step, by what it is spent on."""
    shares = [(k, s) for k, s in profile.shares.items() if s >= LEAST_SHARE]
    whole = sum(share for _, share in shares) or 1.0
    kind = "best" if profile.plan == result.best.plan else "today"
    return {
        "kind": kind,
        "step": f"{figure(1000 * profile.step_seconds)} ms",
        "shares": [(what, round(100 * share / whole, 2)) for what, share in shares],
    }


def _machine(result: Result) -> dict[str, Any]:
    """Sockets, NUMA nodes and cores, and who of the best plan has which."""
    plan, allowed = result.best.plan, allowed_cpus(result)
    count = sum(len(place.cores) for place in result.places)
    sockets = [
        (socket, [_node(place, plan, allowed) for place in members])
        for socket, members in groupby(result.places, key=lambda place: place.socket)
    ]
    parties = [(who, cpulist.render(cpus) or "none") for who, cpus in places(plan).items()]
    return {
        "cores": count,
        "drawn": sockets if 0 < count <= MOST_CORES else [],
        "parties": parties[:MOST_PARTIES],
        "more_parties": max(0, len(parties) - MOST_PARTIES),
        "workers": any(plan.ccl_cpus),
        "caches": any(place.caches for place in result.places),
    }


def _node(place: Place, plan: Plan, allowed: frozenset[int] | None) -> dict[str, Any]:
    cells = [_core(core, plan, allowed) for core in place.cores]
    edges = set(accumulate(place.caches))
    counted: dict[str, int] = {}
    for _, _, words in cells:
        counted[words] = counted.get(words, 0) + 1
    name = "no node is known" if place.numa_node is None else f"node {place.numa_node}"
    count = f"{len(cells)} core" + "s" * (len(cells) != 1)
    if place.memory in MEMORY_WORDS:
        count += f", {(place.memory_bytes or 0) / (1 << 30):.0f} GiB {MEMORY_WORDS[place.memory]}"
    listed = ", ".join(f"{number} × {words}" for words, number in counted.items())
    return {
        "head": f"{name}, {count}",
        "label": f"Socket {place.socket}, {name}, {count}: {listed}",
        "cells": [
            (sign, look + " edge" * (number in edges), words, cpulist.render(core))
            for number, (core, (sign, look, words)) in enumerate(
                zip(place.cores, cells, strict=True)
            )
        ],
    }


def _core(
    core: tuple[int, ...], plan: Plan, allowed: frozenset[int] | None
) -> tuple[str, str, str]:
    """(sign, classes, words) of a core: of several holders the first is drawn, all are named."""
    cpus = set(core)
    holders = [] if plan.as_found else list(_holders(cpus, plan))
    if len(holders) > 1:
        return "+", f"{holders[0][1]} several", " and ".join(words for *_, words in holders)
    if holders:
        return holders[0]
    if allowed is not None and not cpus & allowed:
        return "·", "closed", "not allowed"
    return "", "idle", "allowed" if plan.as_found else "idle"


def _holders(cpus: set[int], plan: Plan) -> Iterator[tuple[str, str, str]]:
    for rank, own in enumerate(plan.cpus):
        if not cpus.isdisjoint(own):
            yield str(rank), f"rank{rank % RANK_COLORS}", f"rank {rank}"
    for rank, own in enumerate(plan.ccl_cpus):
        if not cpus.isdisjoint(own):
            look = f"rank{rank % RANK_COLORS} worker"
            yield f"w{rank}", look, f"oneCCL worker of rank {rank}"


def side_by_side(result: Result) -> dict[Plan, Throughput]:
    """What the confirmation said of each plan that had a part in it, the last block first."""
    runs = [(run.plan, run.samples_per_second) for run in result.confirmation]
    found = {plan: rate for plan, rate in runs if rate is not None}
    if found:
        for side in (result.best, result.baseline):
            found[side.plan] = side.samples_per_second
    return found


def _not_tried(result: Result) -> list[tuple[str, str]]:
    """What was left out and why, what a command would bring in first."""
    said = dict.fromkeys((out.what, out.why) for out in result.left_out)
    rest = sorted(said, key=lambda one: not any(word in one[1] for word in _BRINGS_IN))
    return [*(("would pay", one.words) for one in result.untried), *rest]


def _plans(result: Result) -> Iterator[Bar]:
    """The plans, those that were confirmed first; today's launch is among them, however slow."""
    confirmed = side_by_side(result)

    def order(trial: Trial) -> tuple[int, float]:
        sure = confirmed.get(trial.plan)
        kind, speed = fastest_first(trial)
        return (-1, -sure.median) if sure is not None else (kind, speed)

    ordered = sorted(result.trials, key=order)
    today = [t for t in ordered[MOST_ROWS:] if t.plan == result.baseline.plan][:1]
    shown = [*ordered[:MOST_ROWS], *today]
    known = [(t, confirmed.get(t.plan) or _measured(t)) for t in shown]
    most = max((rate.high for _, rate in known if rate is not None), default=0.0)
    best_marked = today_marked = False
    for trial, rate in known:
        marks = []
        if trial.plan == result.baseline.plan and not today_marked:
            today_marked = True
            marks.append("today" if trial.plan.as_found else "compared with")
        if trial.plan == result.best.plan and not best_marked:
            best_marked = True
            marks.append("best")
        at_most = trial.at_most_samples_per_second if trial.state == PRUNED else None
        remark = ""
        if trial.state == FAILED:
            remark = outcome(trial)[:MOST_LETTERS]
        elif trial.state == PRUNED:
            remark = "cut short" if trial.cut_short else "given up: most likely slower"
        yield {
            "number": trial.number,
            "plan": trial.plan.describe(),
            "marks": marks,
            "bar": None if rate is None else _bar(rate, most),
            "at_most": None if at_most is None else figure(at_most),
            "confirmed": trial.plan in confirmed,
            "origin": trial.origin,
            "remark": remark,
        }


def _measured(trial: Trial) -> Throughput | None:
    return None if trial.state in (PRUNED, FAILED) else trial.samples_per_second


def _lines(result: Result) -> list[dict[str, Any]]:
    """The steps of each confirmed plan in their order, as a line with its median."""
    taken: dict[Plan, list[tuple[float, bool]]] = {}
    runs = sorted(result.confirmation, key=lambda run: run.round)
    for run in runs:
        for turn in run.taken:
            late = set(turn.delayed)
            own = taken.setdefault(run.plan, [])
            own += [(seconds, i in late) for i, seconds in enumerate(turn.step_seconds)]
    usual = {p: median([s for s, late in own if not late] or [s for s, _ in own])
             for p, own in taken.items() if own}  # fmt: skip
    usual = {plan: seconds for plan, seconds in usual.items() if seconds > 0}
    return [
        _line(plan, taken[plan], usual[plan], result)
        for plan in sorted(usual, key=lambda plan: usual[plan])
    ]


def _line(
    plan: Plan, steps: list[tuple[float, bool]], middle: float, result: Result
) -> dict[str, Any]:
    """One line: from 0 to twice its median, so that a wander looks as large in each."""
    unit, per_second = ("ms", 1000.0) if middle < 1 else ("s", 1.0)
    points = thinned(steps, MOST_POINTS)
    wide = 1000 / max(1, len(points) - 1)
    return {
        "plan": plan.describe(),
        "kind": _kind(plan, result),
        "median": f"{figure(middle * per_second)} {unit}",
        "steps": len(steps),
        "delayed": sum(late for _, late in steps),
        "points": " ".join(
            f"{round(i * wide, 1)},{round(max(0.0, 100 - 50 * seconds / middle), 1)}"
            for i, (seconds, _) in enumerate(points)
        ),
    }


def _kind(plan: Plan, result: Result) -> str:
    """Which colour a plan has, wherever it is drawn."""
    if plan == result.best.plan:
        return "best"
    return "today" if plan == result.baseline.plan else "other"


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """So many of them at most, evenly chosen, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def notebook(result: Result) -> str:
    """The verdict and one picture, for the cell of a notebook."""
    from html import escape

    said = summary_of(result)
    colors: Mapping[str, str] = {"today": "#8a929c", "best": "#1b8560", "other": "#b9c1ca"}
    rows = "".join(
        f"<tr><td>{escape(bar['label'])}</td><td style='width:60%'><div style='height:1em;"
        f"width:{bar['width']}%;background:{colors[bar['kind']]}'></div></td>"
        f"<td>{escape(bar['rate'])} samples/s ({escape(bar['interval'])})</td>"
        f"<td>{escape(visible(bar['plan']))}</td></tr>"
        for bar in _sides(result, said)
    )
    return (
        f"<p><b>{escape(visible(said.verdict.means))}</b></p>"
        f"<table style='width:100%;max-width:60em'>{rows}</table>"
    )
