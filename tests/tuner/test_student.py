"""Quantiles of Student's t-distribution, compared with closed forms and tables."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from rows import every_row

from cputune.tuner.student import students_quantile

SHARES = (0.5001, 0.6, 0.9, 0.975, 0.9925, 0.9995, 0.999999)


@every_row("share", SHARES)
def test_one_two_and_four_degrees_of_freedom_have_a_closed_form(share: float) -> None:
    """Shaw 2006, "Sampling Student's T distribution"."""
    spread = 4 * share * (1 - share)
    of_four = math.cos(math.acos(math.sqrt(spread)) / 3) / math.sqrt(spread)
    assert students_quantile(share, 1) == pytest.approx(math.tan(math.pi * (share - 0.5)), rel=1e-9)
    assert students_quantile(share, 2) == pytest.approx(
        (2 * share - 1) * math.sqrt(2 / spread), rel=1e-9
    )
    assert students_quantile(share, 4) == pytest.approx(2 * math.sqrt(of_four - 1), rel=1e-9)


@every_row(
    ("share", "freedom", "value"),
    [
        (0.975, 3, 3.1824463052837078),
        (0.975, 5, 2.5705818356363146),
        (0.975, 10, 2.228138851986274),
        (0.975, 30, 2.0422724563012378),
        (0.975, 120, 1.9799304050824402),
        (0.995, 7, 3.4994832973504924),
        (0.9925, 3, 5.047292458315373),
        # SciPy's stdtrit, for degrees of freedom that tables do not have.
        (0.975, 4.5, 2.6589123472044034),
        (0.9925, 3.7, 4.296035077195807),
        (0.9, 1.25, 2.5013501674092726),
        (0.999, 61.4, 3.2283537635859796),
    ],
)
def test_values_are_those_of_tables(share: float, freedom: float, value: float) -> None:
    assert students_quantile(share, freedom) == pytest.approx(value, rel=1e-11)


@every_row("share", SHARES)
def test_with_many_degrees_of_freedom_it_is_the_normal_distribution(share: float) -> None:
    normal = NormalDist().inv_cdf(share)
    # The first term of the expansion in 1 / freedom (Abramowitz and Stegun 26.7.5).
    expected = normal + (normal**3 + normal) / (4 * 1e5)
    assert students_quantile(share, 1e5) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("freedom", [1.0, 3.5, 40.0])
def test_it_is_symmetric_around_zero(freedom: float) -> None:
    assert students_quantile(0.5, freedom) == pytest.approx(0.0, abs=1e-12)
    assert students_quantile(0.025, freedom) == -students_quantile(0.975, freedom)
