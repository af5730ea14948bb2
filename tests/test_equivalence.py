"""Whether two launches train the same, by what their ranks tell of their first steps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from golden_texts import Golden
from rows import every_row

from cputune.inside.first_steps import digest_of
from cputune.inside.messages import ModelAnswer, TrainedStep
from cputune.plans.equivalence import (
    UNCHECKED,
    ModelAnswers,
    Training,
    equivalent,
    model_answers_of,
    training_of,
    unlike,
)

TYPED = Training(
    dtype="float32",
    rates=((1e-3,), (9e-4,), (8e-4,)),
    samples=("a", "b", "c"),
    batch=8,
    gradient=0.25,
    loss=0.7,
    contents=("k", "l", "m"),
    optimizer={"class": "AdamW", "betas": ["(0.9, 0.999)"]},
    steps=225,
    data=600,
)
TWO = replace(TYPED, ranks=2, gradient=0.25 * (1 + 3e-7))


def test_batches_that_are_made_anew_are_believed_if_the_loss_is_that_of_its_parts(
    golden: Golden,
) -> None:
    anew = replace(TWO, contents=("x", "y", "z"), gradient=0.3, loss=0.9)
    golden(equivalent(TYPED, anew, model_answers(apart=2e-7)).summary)
    verdict = equivalent(TYPED, anew, model_answers(apart=0.3))
    golden(verdict.differs[0])


def test_no_other_draws_explain_a_scale_that_grows_with_the_ranks(golden: Golden) -> None:
    scaled = replace(TWO, contents=("x", "y", "z"), gradient=0.4, loss=0.9)
    verdict = equivalent(TYPED, scaled, model_answers(apart=2e-7))
    golden(verdict.differs)
    smaller = replace(scaled, gradient=0.125, masked=True)
    assert "more than other draws" in equivalent(TYPED, smaller).differs[0]
    assert equivalent(TYPED, replace(scaled, ranks=TYPED.ranks)).same, "its workers draw others"
    assert equivalent(TYPED, replace(scaled, gradient=None)).same, "not seen"


def test_samples_without_numbers_are_known_by_what_they_hold(golden: Golden) -> None:
    stream = replace(TYPED, samples=(None,) * 3)
    assert equivalent(stream, replace(stream, ranks=2)).same
    verdict = equivalent(stream, replace(stream, contents=("k", "k", "l")))
    golden(verdict.differs)


def test_who_promises_the_mathematics_has_to_show_it(golden: Golden) -> None:
    without = replace(TWO, gradient=None)
    assert equivalent(TYPED, without).same
    golden(equivalent(TYPED, without, exact=True).differs)
    assert equivalent(TYPED, TWO, exact=True).same


def model_answers(**said: Any) -> ModelAnswers:
    """What a model answers to the question of its parts; as typed they are the same."""
    answer: ModelAnswer = {
        "event": "answer",
        "question": "ranks",
        "point": "at the first step",
        "loss": [0.7, 0.7],
        "gradient": [0.25, 0.25],
        "apart": 0.0,
    }
    answer.update(said)  # type: ignore[typeddict-item]
    return model_answers_of([answer], dtype="float32")


def test_the_model_s_answers_name_the_figures_of_what_it_refuses(golden: Golden) -> None:
    assert model_answers().refuses("ranks") is None
    assert model_answers().refuses("padding") is None, "nobody asked"
    assert not model_answers().answered("padding")
    assert model_answers(apart=3e-7).largest("ranks") == pytest.approx(3e-7)
    golden(model_answers(apart=0.47).refuses("ranks"))
    broken = model_answers(why="it fails on a part of the batch", apart=None)
    golden(broken.refuses("ranks"))
    assert model_answers(apart=math.nan).refuses("ranks") is not None


def test_two_starts_that_differ_are_named_with_both_figures(golden: Golden) -> None:
    assert unlike(TYPED, TYPED) == ""
    golden(unlike(TYPED, replace(TYPED, loss=0.61)))
    golden(unlike(TYPED, replace(TYPED, contents=("k", "x"))))


def test_a_model_of_another_size_is_another_training(golden: Golden) -> None:
    wide = replace(TYPED, parameters=100)
    other = replace(wide, parameters=400, data=9)
    golden(equivalent(wide, other, other_data=True).differs)


def test_samples_in_an_order_of_the_plans_own_are_not_compared(golden: Golden) -> None:
    other = replace(TWO, samples=("x", "y", "z"), gradient=2.0, loss=3.0, shuffled=True)
    golden(equivalent(TYPED, other).summary)


def test_what_ranks_tell_is_put_together() -> None:
    def told(first: list[int], second: list[int], gradient: float) -> list[TrainedStep]:
        return [
            {"rates": [1e-3], "samples": digest_of(first), "gradient": gradient, "contents": 2},
            {"rates": [9e-4], "samples": digest_of(second)},
        ]

    one = training_of([told([3, 1, 2, 4], [5, 6, 7, 8], 0.5)], batch=4)
    assert not one.shuffled
    two = training_of([told([1, 2], [5, 6], 0.5), told([3, 4], [8, 7], 0.5)], batch=4)
    assert (one.samples, two.apart) == (two.samples, False)
    assert two.contents == (f"{4:016x}", None)
    assert one.dropout is None, "nobody has said"
    apart = training_of([told([1], [2], 0.5), told([3], [4], 0.6)])
    assert apart.apart
    assert training_of([told([1], [2], 0.5), []]) is None


def test_samples_without_numbers_have_no_digest() -> None:
    assert digest_of([None, None]) is None
    assert digest_of(7) == digest_of([7])


def test_what_only_one_of_both_has_told_is_not_compared() -> None:
    assert not equivalent(TYPED, replace(TWO, parameters=100)).differs
    assert not equivalent(replace(TYPED, last=4), TWO).differs
    short = equivalent(replace(TYPED, last=4), replace(TWO, last=8))
    assert "the last batch of each epoch has 8 samples instead of 4" in " ".join(short.allowed)
    told = training_of([[{"rates": [1e-3], "samples": 1}]], batch=4)
    assert told.loader == 0


def test_of_a_model_that_no_one_asked_the_ranks_stay_as_typed(golden: Golden) -> None:
    why = UNCHECKED.refuses("ranks")
    assert why == UNCHECKED.refuses("accumulation")
    golden(why)
    assert UNCHECKED.refuses("padding") is None


@pytest.mark.parametrize(("drawn", "same"), [(False, False), (True, True), (None, True)])
def test_contents_are_compared_also_if_the_numbers_of_the_samples_agree(
    drawn: bool | None, same: bool
) -> None:
    plan = replace(TWO, contents=("k", "x", "m"))
    assert equivalent(TYPED, plan, ModelAnswers(drawn=drawn)).same == same


@every_row(("question", "is_of_data"), [("collator", True), ("rare", False)])
def test_what_a_batch_is_made_of_decides_on_ranks(question: str, is_of_data: bool) -> None:
    """Rank 0 loads the batches of one rank, or of two for four; two joined in one are made anew."""
    answer = {"event": "answer", "question": question, "point": "after 2 updates", "why": "so"}
    model_answers = model_answers_of([answer])  # type: ignore[list-item]
    why = "so, seen after 2 updates"
    for typed, ranks in ((1, 2), (2, 4)):
        assert model_answers.refuses_ranks(typed, ranks) == (None if is_of_data else why)
    assert model_answers.refuses("accumulation") == why
    assert model_answers.refuses_ranks(2, 1) == why
    assert not model_answers.refuses("padding")
    assert not model_answers.refuses("precision")


def test_two_ranks_that_draw_the_same_numbers_are_refused() -> None:
    drawn = replace(TWO, draws_alike=True, drawn=True)
    assert "the same random numbers" in equivalent(TYPED, drawn).differs[0]
    assert equivalent(TYPED, replace(TWO, draws_alike=True)).same, "nothing is drawn"


def test_what_is_the_same_is_said_in_a_line(golden: Golden) -> None:
    verdict = equivalent(TYPED, TWO)
    assert verdict.same
    golden(verdict.summary)


@every_row(
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
        ({"apart": True}, "each rank trains with its own gradient"),
        ({"optimizer": {"class": "SGD"}}, "the optimizer's class is SGD, as typed AdamW"),
        ({"steps": 450}, "it trains for 450 steps, as typed 225"),
        ({"gradient": float("nan")}, "the gradient of the first step has the norm nan"),
    ],
)
def test_what_differs_is_a_sentence(other: dict[str, Any], said: str) -> None:
    verdict = equivalent(TYPED, replace(TWO, **other))
    assert not verdict.same
    assert verdict.differs[0].startswith(said)


@every_row(
    ("typed", "plan", "gradient", "same"),
    [
        ("float32", "bfloat16", 0.26, True),
        ("float32", "bfloat16", 0.27, False),
        ("bfloat16", "bfloat16", 0.2501, True),
        ("bfloat16", "bfloat16", 0.26, False),
        ("float32", "float32", 0.2501, False),
    ],
)
def test_a_gradient_may_differ_by_what_its_precision_rounds(
    typed: str, plan: str, gradient: float, same: bool
) -> None:
    other = replace(TWO, dtype=plan, gradient=gradient)
    assert equivalent(replace(TYPED, dtype=typed), other).same is same
