"""A measured number is read at a glance."""

import pytest

from cputune.figures import figure


@pytest.mark.parametrize(
    ("value", "text"), [(15312.4, "15312"), (1000, "1000"), (22.54, "22.5"), (0.00131, "0.00131")]
)
def test_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert figure(value) == text


def test_more_digits_where_they_are_asked_for() -> None:
    assert (figure(22.5441, 4), figure(9999.6, 4)) == ("22.54", "10000")
