"""Results for the tests of the report: of a simulated machine, and what may become of them."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from confirmed import UNCOMPARED
from rich.console import Console
from tuner.fakes import BY_NAME, VARIED, FakeKeepingRunner

import cputune
from cputune import Plan, Result, ResultError, Step, Trial
from cputune.records.result import FAILED, Profile, Throughput
from cputune.report.writing import print_blocks

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"&\u202e\x1b[2J"


def _noisy(plan: Plan, before: int) -> Iterator[Step]:
    """Steps of two sockets that scatter; others delay one of thirty."""
    chance, machine = random.Random(repr(plan)), BY_NAME["two-sockets"]
    while True:
        seconds = machine.seconds(plan) * chance.lognormvariate(0, 0.02)
        late = 0.6 * seconds if chance.random() < 1 / 30 else 0.0
        yield Step(seconds=seconds + late, samples=8, delayed_seconds=late)


@cache
def tuned() -> Result:
    """A study of two sockets whose plans lived side by side at its end."""
    machine = BY_NAME["two-sockets"]
    runner = FakeKeepingRunner(_noisy)
    result = cputune.tune(
        machine.workload, facts=machine.facts, runner=runner, budget=12, knobs=VARIED
    )
    return replace(result, asked={})  # nobody narrowed it: a new knob only makes no more plans


def with_best(result: Result, plan: Plan) -> Result:
    """The result with another best plan, which was compared in the place of that one."""
    runs = tuple(
        replace(run, plan=plan) if run.plan == result.best.plan else run
        for run in result.confirmation
    )
    return replace(result, best=replace(result.best, plan=plan), confirmation=runs)


def one_trial() -> Result:
    """Today's launch alone."""
    return replace(without_confirmation(), trials=tuned().trials[:1])


def only_failures() -> Result:
    """Not one trial that gave a number."""
    failed = tuple(_failed(trial) for trial in tuned().trials)
    return replace(one_trial(), trials=failed)


def _failed(trial: Trial) -> Trial:
    why = {"kind": "crashed", "reason": "a rank died\nTraceback"}
    return replace(trial, state=FAILED, samples_per_second=None, **why)


def interrupted() -> Result:
    """Ended by hand after three trials."""
    return replace(without_confirmation(), trials=tuned().trials[:3], budget=40)


def without_confirmation() -> Result:
    """Today's launch, and single trials."""
    result = tuned()
    return replace(result, best=result.baseline, confirmation=(), worth=(), **UNCOMPARED)


def profiled() -> Result:
    """A study that has looked where the time of the best plan goes."""
    result = tuned()
    after = {"matrix products": 0.44, "all-reduce": 0.3, "optimizer": 0.2, "the rest": 0.06}
    profile = Profile(plan=result.best.plan, shares=after, steps=4, step_seconds=0.26, gflops=900.0)
    return replace(result, profile=profile)


def elsewhere() -> Result:
    """Of a machine of which nothing is told, by a cputune that did not ask."""
    return replace(tuned(), host={}, versions={}, created=None)


def a_thousand() -> Result:
    """A study of 1,000 trials, one in ten of which has failed."""
    result, chance = tuned(), random.Random(0)
    trials = []
    for number in range(1_000):
        trial = result.trials[number % len(result.trials)]
        middle = chance.uniform(5, 40)
        rate = Throughput(centre=middle, low=0.97 * middle, high=1.03 * middle)
        known = replace(trial, state="completed", samples_per_second=rate, reason=None)
        trials.append(replace(_failed(trial) if number % 10 == 9 else known, number=number))
    return replace(result, trials=tuple(trials), budget=1_000)


CASES = {
    case.__name__: case
    for case in (
        *(tuned, profiled, one_trial, only_failures),
        *(interrupted, without_confirmation, elsewhere, a_thousand),
    )
}


def printed(blocks: Iterable[Any], width: int = 120) -> str:
    """What these blocks of a report are in a terminal without colours."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    print_blocks(blocks, console)
    return out.getvalue()


def hostile() -> Result:
    """The study with hostile words in every field that takes any words."""
    trials = (*tuned().trials[:3], _failed(tuned().trials[3]))
    result = replace(tuned(), data="tokens", notes=("a note",), trials=trials)
    document = json.loads(json.dumps(result.to_json()))
    document["workload"]["argv"] = ["train.py"]
    for place, key in list(_leaves(document, str)):
        kept = place[key]
        place[key] = kept + HOSTILE
        try:
            Result.from_json(document)
        except ResultError:
            place[key] = kept
    document["versions"][HOSTILE] = HOSTILE
    document["host"][HOSTILE] = [HOSTILE]
    return Result.from_json(document)


def _leaves(document: Any, kinds: type | tuple[type, ...]) -> Iterator[tuple[Any, Any]]:
    """Where in a document values of these kinds stand, and under which key."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        if isinstance(value, (dict, list)):
            yield from _leaves(value, kinds)
        elif isinstance(value, kinds):
            yield document, key
