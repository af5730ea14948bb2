"""Quantiles of Student's t-distribution.

SciPy has them too; it is 143 MB, and nothing else here needs it.
"""

from __future__ import annotations

import math
from functools import cache

# A term of the continued fraction that changes the product by less than this is the last one.
PRECISION = 1e-15

# Lentz's method divides by partial sums; one that is zero becomes this.
TINY = 1e-300

# Convergence needs about the square root of the larger parameter.
MOST_TERMS = 10_000


@cache
def students_quantile(share: float, freedom: float) -> float:
    """The value that a variable of ``freedom`` degrees stays below with probability ``share``."""
    if share < 0.5:
        return -students_quantile(1 - share, freedom)
    above = 1 - share
    low = 0.0
    high = 1.0
    while probability_above(high, freedom) > above:
        low = high
        high *= 2
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return middle
        if probability_above(middle, freedom) > above:
            low = middle
        else:
            high = middle


def probability_above(value: float, freedom: float) -> float:
    """The probability of more than ``value``, which is not negative."""
    squared = value * value
    inside = freedom / (freedom + squared)
    outside = squared / (freedom + squared)
    return incomplete_beta(inside, outside, freedom / 2, 0.5) / 2


def incomplete_beta(x: float, rest: float, a: float, b: float) -> float:
    """The regularized incomplete beta function of ``x``; ``rest`` is 1 - x, in full precision."""
    if x == 0 or rest == 0:
        return x
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log_front + a * math.log(x) + b * math.log(rest))
    # The fraction converges fast below the mean; above it the complement does.
    if x < (a + 1) / (a + b + 2):
        return front * continued_fraction(x, a, b) / a
    return 1 - front * continued_fraction(rest, b, a) / b


def continued_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method."""
    numerator = 1.0
    denominator = 1 / _not_zero(1 - (a + b) * x / (a + 1))
    fraction = denominator
    for m in range(1, MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            denominator = 1 / _not_zero(1 + coefficient * denominator)
            numerator = _not_zero(1 + coefficient / numerator)
            fraction *= numerator * denominator
        if abs(numerator * denominator - 1) <= PRECISION:
            break
    return fraction


def _not_zero(value: float) -> float:
    if abs(value) < TINY:
        return TINY
    return value
