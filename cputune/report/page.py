"""``cputune report``: a result as one page of HTML that needs no network.

Here stands what the page says and how long its bars are, as plain values; how it looks stands in
``page.html.j2``. Every picture is made of elements of the page: it is as wide as there is room,
has its numbers in words beside it, and needs no script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from cputune import __version__, cpulist
from cputune.errors import MissingPackageError
from cputune.host import write_atomically
from cputune.host.interpreter import install_tuning
from cputune.plan import Plan
from cputune.portrait import topology_of
from cputune.report.diagnosis import source_urls
from cputune.report.machine import picture as picture_of
from cputune.report.show import (
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
from cputune.result import FAILED, PRUNED, Measured, Result, Throughput, Trial
from cputune.text import figure, visible

MOST_ROWS = 30
MOST_LETTERS = 300
"""Of a reason; the result file holds the whole."""
MOST_FINDINGS = 100
PHONE_COLUMNS = 40
MOST_PARTIES = 64
MOST_POINTS = 240
"""Of a line; a phone has as many pixels."""
TONES = 6
"""Of the kinds of time; the smallest share the last."""
LINE_ROOM = 1.5
"""The scale of steps, over the slowest median: what was delayed for longer is cut off."""
LEAST_SHARE = 0.005

_BRINGS_IN = ("--knobs", "apt-get", "pip install")

Item = TypeVar("Item")
Bar = dict[str, Any]


PARTS = ("speed", "changes", "time", "machine", "not_tried", "launch", "plans", "steps", "doctor")
"""Of the page, in the order of the story; one that has nothing to show is left out."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A part of the page, for a notebook; ``save`` writes it as a page of its own."""

    title: str
    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"<cputune.Picture: {self.title}>"

    def save(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write it, whole or not at all. Raises UsageError where it exists and not ``force``."""
        page = f"<!doctype html>\n<meta charset='utf-8'>\n<title>{escape(self.title)}</title>\n"
        write_atomically(Path(path), page + self.html, force=force)


def page(result: Result, file: str = "cputune.json") -> str:
    """The whole page. ``file`` is where the result lies, for the commands to copy.

    Raises MissingPackageError without jinja2.
    """
    return _drawn(result, file, PARTS, whole=True)


def picture(result: Result, part: str) -> Picture:
    """One of ``PARTS``, or in a sentence why it is not there. Raises as ``page``."""
    html = _drawn(result, "cputune.json", (part,), whole=False)
    return Picture(f"{part.replace('_', ' ')} of {result.workload.name}", html)


def _drawn(result: Result, file: str, parts: tuple[str, ...], *, whole: bool) -> str:
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
    told = story(result, file)
    there = [part for part in parts if part not in told["missing"]]
    why = [f"{TITLES[part]}: {told['missing'][part]}" for part in parts if part not in there]
    text: str = drawn.render(
        **{**told, "missing": list(_missing_words(told["missing"]))},
        parts=there,
        why_not=why,
        whole=whole,
        version=__version__,
    )
    return text


TITLES = {
    "changes": "What to change",
    "time": "Where the time of a step goes",
    "before": "Where the time of today's steps goes",
    "after": "Where the time of the best plan's steps goes",
    "cores": "The cores of the machine",
    "not_tried": "What was not tried",
    "launch": "The launch",
    "plans": "Every plan that was tried",
    "steps": "Steps side by side",
    "doctor": "What the doctor found",
}
"""How a part is called where it is not there."""


def _missing_words(missing: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    yield from ((TITLES[part], why) for part, why in missing.items())


def story(result: Result, file: str) -> dict[str, Any]:
    """What the page says, part by part, as plain values; and why a part is not there."""
    said = summary_of(result, file)
    now, files = launch_commands(file, result.best.plan.nodes)
    found = result.findings
    told: dict[str, Any] = {
        "result": result,
        "said": said,
        "quiet": not result.disturbed,
        "sides": list(_sides(result, said)),
        "steps_of_change": list(_waterfall(said)),
        "times": _times(result),
        "profile_lines": profile_lines(result),
        "machine": _machine(result),
        "would_pay": [one.words for one in (*result.untried, *result.done)],
        "left_out": _left_out(result),
        "plans": list(_plans(result)),
        "left": max(0, len(result.trials) - MOST_ROWS),
        "lines": _lines(result),
        "failed": [
            f"{run.plan.describe()}: {(run.reason or 'no number')[:MOST_LETTERS]}"
            for run in result.confirmation
            if run.samples_per_second is None
        ][:MOST_ROWS],
        "commands": {
            "now": now,
            "files": files,
            "again": tune_command(result),
            "install": install_command(said.versions),
        },
        "findings": [
            (one, [url for url in source_urls(one.source) if url.startswith("https://")])
            for one in (found or ())[:MOST_FINDINGS]
        ],
        "study": (*said.work, *said.study),
    }
    return {**told, "missing": dict(_missing(result, said, told))}


def _missing(result: Result, said: Summary, told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(part, why it has nothing to show)."""
    profiled = {side["kind"] for side in told["times"]["sides"]}
    if said.nothing_to_change:
        yield "launch", "the one that you have"
    if result.disturbed:
        yield "changes", "not known: others disturbed the machine"
    elif said.nothing_to_change:
        yield "changes", "nothing: keep the launch that you have"
    if not profiled:
        yield "time", "no steps were profiled"
    elif "today" not in profiled:
        yield "before", "no knob was varied whose worth follows from it, so nobody looked"
    elif "best" not in profiled and not said.nothing_to_change:
        yield "after", "the study ended before it, or others disturbed the machine"
    if not told["machine"]["drawn"]:
        yield "cores", "the result does not say which cores the machine has"
    if not told["would_pay"] and not told["left_out"]:
        yield "not_tried", "everything that this machine offers was in the search"
    if not told["plans"]:
        yield "plans", "no plan was tried"
    if not result.confirmation:
        yield "steps", "nothing was measured again side by side: speeds are those of single trials"
    elif not told["lines"] and not told["failed"]:
        yield "steps", "the result does not hold the steps of its confirmation"
    if result.findings is None:
        yield "doctor", "it was made without asking; cputune doctor asks now"
    elif not result.findings:
        yield "doctor", "nothing was wrong when the study began"


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
    """Today's speed, each change as a step from there, the best plan's: where each bar lies."""
    speeds = [1.0]
    for change in said.changes:
        speeds.append(speeds[-1] * (change.worth.ratio if change.worth else 1.0))
    known = any(change.worth for change in said.changes)
    most = max(speeds) if known else 0.0

    def bar(label: str, words: str, rate: str, kind: str, ends: tuple[float, float]) -> Bar:
        low, high = (100 * end / most if most else 0.0 for end in sorted(ends))
        width = round(max(0.6, high - low), 2) if kind else 0
        left = round(min(low, 100 - width), 2)
        return {"label": label, "words": words, "rate": rate, "kind": kind,
                "left": left, "width": width}  # fmt: skip

    def total(label: str, side: Measured, kind: str, speed: float) -> Bar:
        rate = f"{figure(side.samples_per_second.median)} samples/s"
        return bar(label, side.plan.describe(), rate, kind, (0.0, speed))

    if known:
        yield total("Today", said.today, "today", 1.0)
    for number, change in enumerate(said.changes):
        kind = ""
        if change.worth is not None:
            kind = "gain" if change.worth.ratio >= 1 else "loss"
            kind += "" if change.worth.significant or change.worth.high < 1 else " unsure"
        words = f"{change.today} → {change.best}; {change.keeps}"
        ends = (speeds[number], speeds[number + 1])
        yield bar(change.knob, words, worth_words(change), kind, ends)
    if known:
        yield total("Best", said.best, "best", speeds[-1])


def _times(result: Result) -> dict[str, Any]:
    """The time of a step of today's launch and of the best plan, by what it is spent on.

    Both take as many samples as a step of today's launch; where their number is not known, it is
    the time of one sample. Their speeds are those that were measured without the profiler.
    """
    told = {"today": _shares_of_today(result)}
    if result.profile is not None and result.profile.plan == result.best.plan:
        told["best"] = result.profile.shares
        if result.best.plan == result.baseline.plan:
            told = {"today": result.profile.shares}
    samples = samples_of_step(result)
    sides = {"today": result.baseline, "best": result.best}
    seconds = {
        kind: (samples or 1) / sides[kind].samples_per_second.median
        for kind, shares in told.items()
        if shares and sides[kind].samples_per_second.median > 0
    }
    parts = {
        kind: {k: s * seconds[kind] for k, s in told[kind].items() if s >= LEAST_SHARE}
        for kind in seconds
    }
    most = max((sum(own.values()) for own in parts.values()), default=0.0) or 1.0
    kinds = dict.fromkeys(kind for own in parts.values() for kind in own)
    order = sorted(kinds, key=lambda k: -max(own.get(k, 0.0) for own in parts.values()))
    tones = {kind: min(number, TONES - 1) for number, kind in enumerate(order)}
    batch = "a sample" if samples is None else f"{samples} samples"
    return {
        "sides": [
            {
                "kind": side,
                "label": {"today": "Today", "best": "Best"}[side],
                "step": f"{_time(seconds[side])} for {batch}",
                "parts": [
                    {
                        "what": k,
                        "tone": tones[k],
                        "share": round(100 * told[side][k]),
                        "width": round(min(100.0, 100 * own[k] / most), 2),
                    }
                    for k in order
                    if k in own
                ],
            }
            for side, own in parts.items()
        ],
        "key": [
            {
                "what": k,
                "tone": tones[k],
                "words": " → ".join(_time(own.get(k, 0.0)) for own in parts.values()),
            }
            for k in order
        ],
    }


def _shares_of_today(result: Result) -> Mapping[str, float]:
    """As they were looked at before the search; padding is a share of tokens, and not of time."""
    return {k: share for k, share in result.workload.time_shares.items() if k != "padding"}


def samples_of_step(result: Result) -> int | None:
    """Samples that a step of today's launch takes; None where that is not known."""
    job = result.workload
    if job.batch_per_rank is not None:
        return job.batch_per_rank * result.baseline.plan.world_size
    return job.global_batch_size


def _time(seconds: float) -> str:
    return f"{figure(1000 * seconds)} ms" if seconds < 1 else f"{figure(seconds)} s"


def _machine(result: Result) -> dict[str, Any]:
    """The picture of the terminal, as wide as a phone, and who of the best plan has which CPUs."""
    parties = [
        (who, cpulist.render(cpus) or "none") for who, cpus in places(result.best.plan).items()
    ]
    known = any(place.cores for place in result.places)
    topology = topology_of(result.places, allowed_cpus(result))
    bound = {} if result.best.plan.as_found else places(result.best.plan)
    drawn = picture_of(topology, bound=bound, width=PHONE_COLUMNS) if known else []
    return {
        "drawn": "\n".join(drawn),
        "parties": parties[:MOST_PARTIES],
        "more_parties": max(0, len(parties) - MOST_PARTIES),
    }


def side_by_side(result: Result) -> dict[Plan, Throughput]:
    """What the confirmation said of each plan that had a part in it, the last block first."""
    runs = [(run.plan, run.samples_per_second) for run in result.confirmation]
    found = {plan: rate for plan, rate in runs if rate is not None}
    if found:
        for side in (result.best, result.baseline):
            found[side.plan] = side.samples_per_second
    return found


def _left_out(result: Result) -> list[tuple[str, str]]:
    """What was left out and why, what a command would bring in first."""
    said = dict.fromkeys((out.what, out.why) for out in result.left_out)
    return sorted(said, key=lambda one: not any(word in one[1] for word in _BRINGS_IN))


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
            "kind": _kind(trial.plan, result),
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
    most = LINE_ROOM * max(usual.values(), default=0.0)
    return [
        _line(plan, taken[plan], usual[plan], most, result)
        for plan in sorted(usual, key=lambda plan: usual[plan])
    ]


def _line(
    plan: Plan, steps: list[tuple[float, bool]], middle: float, most: float, result: Result
) -> dict[str, Any]:
    """One line, from 0 to ``most`` seconds, as all others."""

    def height(seconds: float) -> float:
        return round(max(0.0, 100 - 100 * seconds / most), 1)

    points = thinned(steps, MOST_POINTS)
    wide = 1000 / max(1, len(points) - 1)
    return {
        "plan": plan.describe(),
        "kind": _kind(plan, result),
        "median": _time(middle),
        "most": _time(most),
        "height": height(middle),
        "steps": len(steps),
        "delayed": sum(late for _, late in steps),
        "points": " ".join(
            f"{round(i * wide, 1)},{height(seconds)}" for i, (seconds, _) in enumerate(points)
        ),
    }


def _kind(plan: Plan, result: Result) -> str:
    """Which colour a plan has, wherever it is drawn: today's launch its own, best or not."""
    if plan == result.baseline.plan:
        return "today"
    return "best" if plan == result.best.plan else "other"


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """So many of them at most, evenly chosen, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]
