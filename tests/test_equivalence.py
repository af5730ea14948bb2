"""Whether two launches train the same, by what their ranks tell of their first steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cputune.equivalence import Training, equivalent, training_of
from cputune.inside.first_steps import digest_of
from cputune.inside.messages import Trained

TYPED = Training(
    dtype="float32",
    rates=((1e-3,), (9e-4,), (8e-4,)),
    samples=("a", "b", "c"),
    batch=8,
    gradient=0.25,
    loss=0.7,
    content=120.0,
    optimizer={"class": "AdamW", "betas": ["(0.9, 0.999)"]},
    steps=225,
    data=600,
)
TWO = replace(TYPED, ranks=2, gradient=0.25 * (1 + 3e-7))


def test_what_is_the_same_is_said_in_a_line() -> None:
    verdict = equivalent(TYPED, TWO)
    assert verdict.same
    assert verdict.summary == "225 steps, same samples, learning rate and gradient (1e-6)"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            {"rates": ((1e-3,), (8e-4,), (6e-4,))},
            "the learning rate of step 2 is 0.0008, as typed it is 0.0009",
        ),
        ({"samples": ("a", "x", "c")}, "step 2 takes other samples than as typed"),
        ({"batch": 16}, "a step takes 16 samples, as typed it takes 8"),
        (
            {"gradient": 0.523457},
            "the gradient of the first step has the norm 0.523457, as typed 0.25 "
            "(0.0001 is allowed)",
        ),
        ({"loss": 1.4}, "the loss of the first step is 1.4, as typed 0.7 (0.0001 is allowed)"),
        ({"apart": True}, "each rank trains with a gradient of its own: they are not averaged"),
        ({"optimizer": {"class": "SGD"}}, "the optimizer's class is SGD, as typed AdamW"),
        ({"steps": 450}, "it trains for 450 steps, as typed 225"),
        ({"gradient": float("nan")}, "the gradient of the first step has the norm nan"),
    ],
)
def test_what_differs_is_a_sentence(other: dict[str, Any], said: str) -> None:
    verdict = equivalent(TYPED, replace(TWO, **other))
    assert not verdict.same
    assert verdict.differs[0].startswith(said)


@pytest.mark.parametrize(
    ("dtype", "gradient", "same"),
    [("bfloat16", 0.26, True), ("bfloat16", 0.27, False), ("float32", 0.2501, False)],
)
def test_a_gradient_may_differ_by_what_its_precision_rounds(
    dtype: str, gradient: float, same: bool
) -> None:
    assert equivalent(TYPED, replace(TWO, dtype=dtype, gradient=gradient)).same is same


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"drawn": True}, "the step draws random numbers"),
        ({"content": 119.0}, "batches of the same samples are made anew"),
        ({"samples": (None,) * 3}, "its samples have no numbers"),
    ],
)
def test_draws_of_their_own_agree_roughly_and_a_doubled_gradient_does_not(
    other: dict[str, Any], why: str
) -> None:
    assert equivalent(TYPED, replace(TWO, gradient=0.3, **other)).summary.endswith(why)
    verdict = equivalent(TYPED, replace(TWO, gradient=0.5, **other))
    assert why in verdict.differs[0]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"drawn": True, "gradient": 0.3}, "its first step draws random numbers"),
        ({"gradient": None}, "its ranks show no gradient of the first step"),
    ],
)
def test_who_promises_the_mathematics_has_to_show_it(other: dict[str, Any], said: str) -> None:
    assert equivalent(TYPED, replace(TWO, **other)).same
    verdict = equivalent(TYPED, replace(TWO, **other), exact=True)
    assert verdict.differs[-1].startswith(said)
    drawing = replace(TYPED, drawn=True)
    assert equivalent(drawing, replace(drawing, ranks=2, gradient=0.3), exact=True).same
    assert equivalent(TYPED, TWO, exact=True).same


def test_a_recipe_of_other_data_than_its_trials_have_is_held_against_its_optimizer_alone() -> None:
    more = replace(TWO, data=10_000, samples=("x",), steps=9, gradient=3.0)
    assert equivalent(TYPED, more, other_data=True).same
    fewer = replace(more, data=2)
    assert equivalent(TYPED, fewer, other_data=True).same
    assert not equivalent(TYPED, fewer).same, "a script's launch takes the data of its trials"
    assert not equivalent(TYPED, replace(more, optimizer={}), other_data=True).same


def test_samples_in_an_order_of_the_plans_own_are_not_compared() -> None:
    other = replace(TWO, samples=("x", "y", "z"), gradient=2.0, loss=3.0, shuffled=True)
    assert equivalent(TYPED, other).summary == (
        "225 steps, same learning rate, gradients are of other draws: "
        "its samples come in another order"
    )


def test_what_ranks_tell_is_put_together() -> None:
    def told(first: list[int], second: list[int], gradient: float) -> list[Trained]:
        return [
            {"rates": [1e-3], "samples": digest_of(first), "gradient": gradient, "content": 2.0},
            {"rates": [9e-4], "samples": digest_of(second)},
        ]

    one = training_of([told([3, 1, 2, 4], [5, 6, 7, 8], 0.5)], batch=4)
    two = training_of([told([1, 2], [5, 6], 0.5), told([3, 4], [8, 7], 0.5)], batch=4)
    assert one is not None
    assert two is not None
    assert (one.samples, two.content, two.apart) == (two.samples, 4.0, False)
    assert one.dropout is None, "nobody has said"
    apart = training_of([told([1], [2], 0.5), told([3], [4], 0.6)])
    assert apart is not None
    assert apart.apart
    assert training_of([told([1], [2], 0.5), []]) is None


def test_samples_without_numbers_have_no_digest() -> None:
    assert digest_of([None, None]) is None
    assert digest_of(7) == digest_of([7])
