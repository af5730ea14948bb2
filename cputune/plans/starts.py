"""Whether two starts of the same launch have the same data set. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cputune.inside.equivalence_check import STARTS
from cputune.inside.messages import ModelAnswer

OTHER_DATA = (
    "its data set is another one in each start ({}), and each rank would have its own: seed what"
    " splits or makes it (random.seed, numpy.random.seed, torch.manual_seed), and sort sets"
)


def data_apart(answers: Sequence[ModelAnswer], others: Sequence[ModelAnswer]) -> str | None:
    """How the data sets of two starts differ, as those of two ranks would; empty if they do not,
    None if they are not known.
    """
    # The first entry is the number of samples, the others are digests of some.
    first, second = _digests_in(answers), _digests_in(others)
    if not first or not second:
        return None
    if first[0] != second[0]:
        return OTHER_DATA.format(f"{first[0]} samples, and {second[0]}")
    count = min(len(first), len(second)) - 1
    apart = sum(one != other for one, other in zip(first[1:], second[1:], strict=False))
    if apart:
        return OTHER_DATA.format(f"{apart} of {count} samples differ")
    return ""


def _digests_in(answers: Sequence[ModelAnswer]) -> Sequence[str]:
    return next((answer["digests"] for answer in answers if answer["question"] == STARTS), ())
