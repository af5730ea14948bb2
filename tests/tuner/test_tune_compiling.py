"""Steps in which torch.compile is at work, and what becomes of the time that it takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

import pytest
from machines import TODAY, machine
from tuner.fakes import SMALL, FakeRunner, steady

import cputune
from cputune.facts import HostFacts
from cputune.knobs.kernels import compiled
from cputune.plan import Plan
from cputune.result import Result, Speedup, Worth
from cputune.steps import Step
from cputune.tuner.conclusion import compile_notes
from cputune.tuner.reading import Rules, Run, take

FACTS: HostFacts = replace(machine(cores_per_socket=2, packages=TODAY), cxx="/usr/bin/g++")
COMPILING = Step(seconds=40.4, samples=8, compile_seconds=38.0)
FIX = {"ranks": 1, "threads": 2, "precision": "bf16"}


def read(*steps: Step) -> Run:
    run = Run()
    for step in steps:
        take(run, step, Rules())
    return run


class TestReading:
    def test_a_step_that_was_compiled_in_is_no_step_that_counts(self) -> None:
        run = read(COMPILING, *[Step(seconds=0.4, samples=8)] * 2)
        assert run.logs == [pytest.approx(math.log(0.4 / 8))] * 2
        assert (run.steps, run.compiled) == (3, 1)
        assert run.compile_seconds == pytest.approx(40.0), "its own step is not the compiler's"

    def test_it_is_none_where_the_other_steps_take_longer(self) -> None:
        little = Step(seconds=0.4, samples=8, compile_seconds=0.2)
        assert read(little).compile_seconds == 0.0
        assert read(little, Step(seconds=0.9, samples=8)).compile_seconds == 0.0


def study() -> Result:
    """Compiled, a step takes 0.3 s instead of 0.4 s, after 60 s for the compiler."""

    def script(plan: Plan, before: int) -> Iterable[Step]:
        if not compiled(plan):
            return steady(0.4)
        first: Iterator[Step] = iter([Step(seconds=60.3, samples=8, compile_seconds=59.0)])
        return chain(first, steady(0.3))

    return cputune.tune(
        SMALL.workload,
        facts=FACTS,
        runner=FakeRunner(script),
        knobs=["+compile"],
        fix=FIX,
    )


class TestAStudy:
    def test_a_run_is_taken_as_long_and_told_after_how_many_steps_it_is_won_back(self) -> None:
        result = study()
        assert compiled(result.best.plan)
        assert result.speedup.ratio == pytest.approx(4 / 3, rel=0.02)
        trial = next(trial for trial in result.trials if compiled(trial.plan))
        assert trial.compile_seconds == pytest.approx(60.0)
        assert "takes 60 s at the start" in " ".join(result.notes)
        assert "about 600 of them" in " ".join(result.notes), "60 s, of which each saves 0.1"


@pytest.fixture(scope="module")
def result() -> Result:
    return study()


class TestWonBack:
    """60 s for the compiler; 8 samples take 0.3 s then, and what the worth says before."""

    def after(self, result: Result, ratio: float, **changes: object) -> str:
        worth = tuple(
            Worth(knob=knob, value="on", speedup=Speedup(ratio=one, low=one, high=one))
            for knob, one in (("precision", 9.0), ("compile", ratio))
        )
        (note,) = compile_notes(replace(result, worth=worth, **changes))
        return note

    @pytest.mark.parametrize("ratio", [1.0, 0.5])
    def test_where_nothing_is_saved_it_is_not(self, result: Result, ratio: float) -> None:
        assert self.after(result, ratio).endswith(
            "no measurement shows that faster steps make up for it."
        )

    def test_what_a_step_saves_is_told_by_the_worth(self, result: Result) -> None:
        assert "after about 400 of them" in self.after(result, 1.5), "each saves 0.15 s"
