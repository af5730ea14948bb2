"""What another machine has measured, as it would be here."""

from __future__ import annotations

import math

import pytest
from tuner.fakes import PLANS

from cputune.result import Throughput, Trial
from cputune.tuner.race import WANDER
from cputune.tuner.reading import Run
from cputune.tuner.shared import as_here

TRIAL = Trial(
    number=3,
    plan=PLANS[0],
    state="completed",
    samples_per_second=Throughput(median=20.0, low=18.0, high=22.0),
    at_most_samples_per_second=24.0,
)
RUN = Run(logs=[math.log(0.06), math.log(0.05)])


def rate(median: float, width: float = 1.0) -> Throughput:
    return Throughput(median=median, low=median / width, high=median * width)


def test_it_is_scaled_by_the_launch_of_today() -> None:
    heard = as_here(TRIAL, RUN, there=rate(10), here=rate(5))
    assert heard.trial.samples_per_second == Throughput(median=10.0, low=9.0, high=11.0)
    assert heard.trial.at_most_samples_per_second == 12.0
    assert [math.exp(value) for value in heard.run.logs] == pytest.approx([0.12, 0.1])
    assert heard.trial.elsewhere
    assert heard.error == 0


def test_it_is_as_unsure_as_both_launches_are() -> None:
    width = math.exp(1.96 * 0.03)
    heard = as_here(TRIAL, RUN, there=rate(10, width), here=rate(10, math.exp(1.96 * 0.04)))
    assert heard.error == pytest.approx(0.05)


@pytest.mark.parametrize(("there", "here"), [(None, rate(5)), (rate(5), None), (None, None)])
def test_without_one_of_them_it_is_taken_as_it_is(
    there: Throughput | None, here: Throughput | None
) -> None:
    heard = as_here(TRIAL, RUN, there=there, here=here)
    assert heard.trial.samples_per_second == TRIAL.samples_per_second
    assert heard.run.logs == RUN.logs
    assert heard.trial.elsewhere
    assert heard.error == WANDER


def test_a_launch_of_which_hardly_anything_is_known_is_not_sure() -> None:
    hardly = Throughput(median=10.0, low=0.0, high=20.0)
    assert as_here(TRIAL, RUN, there=rate(10), here=hardly).error == WANDER
    slow = Throughput(median=0.5, low=0.25, high=1.0)
    assert as_here(TRIAL, RUN, there=rate(10), here=slow).error == pytest.approx(0.3536, abs=1e-4)
