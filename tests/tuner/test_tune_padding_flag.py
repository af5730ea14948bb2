"""What the script's own flag against padding brings: measured, where cutting is not allowed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import pytest
from tuner.fakes import PLANS, FakeLivingRunner, measuring

from cputune.levers import untried
from cputune.result import Trial
from cputune.steps import Crashed, Runner, Step
from cputune.tuner.padding_flag import gain_of_flag, with_flag
from cputune.workload import Padding, Workload

PADDED = Padding(share=0.59, left=0.63, kept="the loss counts it", mend="--pad_to_max_length False")
JOB = replace(Workload.script(["run_qa.py", "--seed", "1"]), padding=PADDED)
TOLD = ("run_qa.py", "--seed", "1", "--pad_to_max_length", "False")


def test_the_words_of_the_script_are_as_its_flag_has_them() -> None:
    other = with_flag(replace(JOB, launch=("torchrun", "run_qa.py")))
    assert other is not None
    assert (other.argv, other.launch[-2:]) == (TOLD, TOLD[-2:])
    typed = replace(JOB, argv=("run.py", "--pad_to_max_length", "--seed", "1"))
    without = with_flag(replace(typed, padding=replace(PADDED, mend="without --pad_to_max_length")))
    assert without is not None
    assert without.argv == ("run.py", "--seed", "1")


@pytest.mark.parametrize("padding", [None, replace(PADDED, kept=None), replace(PADDED, mend=None),
                                     replace(PADDED, share=0.05)])  # fmt: skip
def test_without_a_flag_that_would_pay_nothing_is_asked(padding: Padding | None) -> None:
    assert with_flag(replace(JOB, padding=padding)) is None


@dataclass
class FakeScriptRunner(FakeLivingRunner):
    """Plays the steps of a job: which, its words say."""

    workload: Workload = JOB


def asked(
    brings: float, *, heeds: bool = True, seconds: float | None = None, dies: bool = False
) -> tuple[tuple[float, float] | None, list[tuple[str, ...]]]:
    """What is said of a flag that makes steps so many times shorter, and which jobs were opened."""
    opened: list[tuple[str, ...]] = []

    def open_runner(workload: Workload, fresh: bool) -> AbstractContextManager[Runner]:
        assert fresh
        opened.append(workload.argv)
        faster = brings if workload.argv == TOLD else 1.0

        def steps(number: int) -> Iterator[Step]:
            while True:
                if dies and workload.argv == TOLD:
                    raise Crashed("no such argument")
                yield Step(seconds=0.5 / faster, samples=8, loss=3.0 / faster)

        return nullcontext(FakeScriptRunner(steps, workload=workload if heeds else JOB))

    among = measuring(seconds, reference=[3.0] * 9)
    among.findings.trials.extend([_trial(), _trial()])
    found = gain_of_flag(among, JOB, PLANS[0], open_runner)
    assert not among.findings.confirm_runs, "the confirmation is another one"
    return found, opened


def _trial() -> Trial:
    return Trial(number=0, plan=PLANS[0], state="completed")


def test_the_best_plan_is_measured_beside_itself_with_the_flag() -> None:
    found, opened = asked(2.0)
    assert opened == [JOB.argv, TOLD]
    assert found is not None
    assert found[0] < 2.0 < found[1] < 2.4
    assert math.sqrt(found[0] * found[1]) == pytest.approx(2.0, rel=0.02)
    (said,) = untried((), PADDED, flag=found)
    assert (said.low, said.high) == found
    assert said.do == "start the script --pad_to_max_length False (measured here)"


def test_a_runner_that_takes_no_other_words_says_nothing() -> None:
    assert asked(2.0, heeds=False)[0] is None


def test_a_script_that_fails_with_the_flag_says_nothing() -> None:
    assert asked(2.0, dies=True)[0] is None


def test_without_the_time_for_it_nothing_is_opened() -> None:
    assert asked(2.0, seconds=30.0) == (None, [])
