"""Whether a plan trains the same as your current launch. The one place that decides it. Pure.

    verdict = equivalent(training_of(typed_ranks), training_of(plan_ranks), model_answers)
    reason = model_answers.refuses("ranks")

A ``Training`` is what ranks reported of their first steps (``cputune.inside.first_steps``):
learning rates, samples and their content, the optimizer, the end of an epoch and of the training;
and of the first step, without dropout and other random draws, the loss and the norm of the gradient
before clipping.

A ``ModelAnswers`` has the answers of the model, checked once in a process that is not measured
(``cputune.inside.equivalence_check``): one question for each knob, at the precision of the current
launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cputune.inside.messages import ModelAnswer, TrainedStep
from cputune.inside.nearness import LEAST_LOSS

# The relative error of a gradient in the same precision, by the type of its matmuls.
#
# fp32: sums of a million terms in another order differ by about the root of their number times
# 2^-24, 6e-5 (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis").
# bf16 and fp16: a sum that is cut in two is rounded once more, by at most 2^-8.
TOLERANCES = {"float32": 1e-4, "bfloat16": 8e-3, "float16": 8e-3}

# A loss in the same precision is a mean of fp32 numbers, one per sample. What rounds them in
# bf16 rounds them alike in a part of the batch.
LOSS_TOLERANCES = {"float32": 1e-4, "bfloat16": 1e-3, "float16": 1e-3}

# Loss and gradient in another precision: each of some 24 layers rounds its factors anew, by
# 2^-9 (Higham 2002, "Accuracy and stability of numerical algorithms", 3.1: errors of a chain add
# up).
OTHER_PRECISION = 0.05

# The factor by which a gradient may differ for other draws of the same samples with another
# number of ranks: a scale that grows with the ranks is at least 2.
OTHER_DRAWS = 1.5

# Learning rates are computed in fp64 from the same numbers.
RATE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What all ranks of a launch train together. None in a field: not seen.

    Attributes:
        ranks: how many.
        dtype: of its matmuls, "float32" or "bfloat16".
        rates: the learning rates of each step, one per group of parameters.
        samples: for each step the digest of the samples of all ranks; None for a stream.
        contents: for each step the digest of their content.
        batch: samples of the first step.
        gradient: norm of the first step's gradient, before clipping.
        apart: the ranks had different gradients, which were not averaged.
        loss: of the first step.
        dropout: whether its layers drop anything.
        drawn: the first step drew random numbers besides dropout.
        masked: masks of dropout were drawn in the first step, as a plan draws them.
        draws_alike: two ranks draw the same random numbers next.
        optimizer: its class and settings.
        steps: to the end.
        epoch_steps: of one pass over the data.
        shuffled: the plan takes the samples in its own order.
        loader: which of the prepared loaders it trains on.
        unused: parameters without gradient exist.
        data: samples of the data set.
        parameters: numbers that are trained.
        last: samples of the last step of an epoch.
        drift: how the weights or learning rates of its ranks differ; empty if they do not.
    """

    ranks: int = 1
    dtype: str | None = None
    rates: tuple[tuple[float, ...], ...] = ()
    samples: tuple[str | None, ...] = ()
    contents: tuple[str | None, ...] = ()
    batch: int = 0
    gradient: float | None = None
    apart: bool = False
    loss: float | None = None
    drawn: bool = False
    dropout: bool | None = None
    masked: bool = False
    draws_alike: bool = False
    optimizer: Mapping[str, Any] = field(default_factory=dict, hash=False)
    steps: int | None = None
    epoch_steps: int | None = None
    shuffled: bool = False
    loader: int = 0
    unused: bool = False
    data: int | None = None
    parameters: int | None = None
    last: int | None = None
    drift: str = ""

    def uneven(self, ranks: int) -> str:
        """What this number of ranks does with the last batch of an epoch; empty for nothing."""
        if self.last is None or self.last % ranks == 0:
            return ""
        filled = self.last + -self.last % ranks
        return (
            f"the last batch of each epoch has {filled} samples instead of {self.last}, "
            "since it is filled up from its first ones"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Whether a plan trains the same.

    Attributes:
        differs: what does not agree, a sentence each; empty if it trains the same.
        allowed: what differs, but is allowed at every level of ``--keep``.
        deviation: of the gradient of the first step, relative; None for other batches.
        summary: "225 steps, same samples, learning rate and gradient (1e-6)".
    """

    differs: tuple[str, ...] = ()
    summary: str = ""
    allowed: tuple[str, ...] = ()
    deviation: float | None = None

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.differs


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """The answer of a model to a question, at one point of its training.

    Attributes:
        question: "repeats" (the same batch again), "ranks" (the batch in parts), "rare" (a
            batch of rare samples in parts), "padding" (without it), "threads" (another number
            of them), "precision" (in bf16). About the batches: "samples" (does reading one
            change another), "collator" (does it mix them), "draws" (is anything drawn once for
            a whole batch), "parameters" (are others trained later), "workers" and "weights"
            (does another process make the same batches).
        point: when it was checked; empty if it was not.
        loss, gradient: of both trainings; empty without an answer.
        apart: the norm of the gradients' difference, over that of the larger one.
        why: why there is no answer; empty if there was nothing to check.
    """

    question: str
    point: str
    loss: tuple[float, ...] = ()
    gradient: tuple[float, ...] = ()
    apart: float | None = None
    why: str | None = None

    @property
    def largest(self) -> float | None:
        """The larger relative difference of loss and gradient; None: no answer."""
        if self.apart is None:
            return None
        loss = _relative(self.loss[0], self.loss[1], LEAST_LOSS)
        if math.isnan(self.apart):
            return math.nan
        return max(self.apart, loss or 0.0)


# The text of a refusal, by its question.
_OTHERWISE = {
    "repeats": "the same batch gives another {what} when it is computed again ({figures})",
    "ranks": "the {what} of a batch is not that of its parts ({figures})",
    "accumulation": "the {what} of a batch is not that of its parts, padded alone ({figures})",
    "rare": "the {what} of a batch with a rare sample is not that of its parts ({figures})",
    "padding": "the {what} counts it ({figures})",
    "threads": "the {what} depends on the number of threads ({figures})",
    "precision": "the {what} differs in bf16 ({figures})",
}

# The questions that decide on a knob, in addition to "repeats" and the one of its name.
_ALSO = {
    "ranks": ("draws", "parameters", "ranks", "rare"),
    "accumulation": ("samples", "collator", "ranks", "rare", "accumulation"),
    "workers": ("samples", "workers", "weights"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswers:
    """What your current launch has shown of its batches, knob by knob.

    Attributes:
        answers: of its model.
        dtype: of its matmuls.
        unlike: how two starts of it differ; empty if they do not.
        drawn: the same samples make other batches with other random numbers; None: unknown.
        updates: after how many it was checked last; None: unknown.
    """

    answers: tuple[Deviation, ...] = ()
    dtype: str | None = None
    unlike: str = ""
    drawn: bool | None = None
    updates: int | None = None

    def refuses(self, question: str) -> str | None:
        """Why a knob does not train the same, at the first point that shows it; None: it may.

        A batch that is accumulated is one in parts, too.
        """
        for name in ("repeats", *_ALSO.get(question, (question,))):
            for answer in self.answers:
                if answer.question != name:
                    continue
                reason = self._reason(answer)
                if reason and answer.point:
                    return f"{reason}, seen {answer.point}"
                if reason:
                    return reason
        return None

    def refuses_ranks(self, typed_ranks: int, ranks: int) -> str | None:
        """Why this number of ranks does not train the same; None: it may.

        Rank 0 loads the batches of the current launch (``inside.applying.dispatch``). They are
        joined if they cannot be dealt out, as if they were accumulated in fewer steps.
        """
        reason = self.refuses("ranks")
        if reason is None and ranks % typed_ranks:
            return self.refuses("accumulation")
        return reason

    def answered(self, question: str) -> bool:
        """Whether a question has an answer, or there was nothing to check."""
        return any(answer.question == question for answer in self.answers)

    def largest(self, question: str) -> float | None:
        """The largest deviation that a question has shown; None if it has shown none."""
        largest: float | None = None
        for answer in self.answers:
            if answer.question != question or answer.largest is None:
                continue
            if math.isnan(answer.largest):
                return answer.largest
            if largest is None or answer.largest > largest:
                largest = answer.largest
        return largest

    def _reason(self, answer: Deviation) -> str | None:
        """Why an answer shows that it does not train the same; None or empty if it may."""
        if answer.apart is None:
            return answer.why
        loss, other_loss = answer.loss
        loss_tolerance = _tolerance(LOSS_TOLERANCES, self.dtype)
        tolerance = _tolerance(TOLERANCES, self.dtype)
        if answer.question == "precision":
            loss_tolerance = tolerance = OTHER_PRECISION
        apart = _relative(loss, other_loss, LEAST_LOSS)
        # "not <=" and not ">": a NaN is never within a tolerance.
        if apart is None or not apart <= loss_tolerance:
            figures = f"{loss:.6g}, and {other_loss:.6g}"
            return _OTHERWISE[answer.question].format(what="loss", figures=figures)
        if not answer.apart <= tolerance:
            figures = f"apart by {answer.apart:.2g} of its norm {answer.gradient[0]:.4g}"
            return _OTHERWISE[answer.question].format(what="gradient", figures=figures)
        return None


NO_ANSWER = "it could not be checked whether its model trains the same on more ranks"

# If a model has failed before its check, its ranks stay as typed.
NOT_ANSWERED = Deviation(question="ranks", point="", why=NO_ANSWER)

# If a model was not checked, its ranks stay as typed.
UNCHECKED = ModelAnswers(
    answers=(
        Deviation(
            question="ranks",
            point="",
            why="the time limit is too short to check whether it trains the same on more ranks",
        ),
    )
)


def model_answers_of(answers: Sequence[ModelAnswer], *, dtype: str | None = None) -> ModelAnswers:
    """What a rank has answered, the last of each question and point."""
    ends = []
    deviations_by_point: dict[tuple[str, str], Deviation] = {}
    for answer in answers:
        if not answer["question"]:
            ends.append(answer)
        else:
            deviations_by_point[answer["question"], answer["point"]] = Deviation(
                question=answer["question"],
                point=answer["point"],
                loss=tuple(answer.get("loss", ())),
                gradient=tuple(answer.get("gradient", ())),
                apart=answer.get("apart"),
                why=answer.get("why"),
            )
    return ModelAnswers(
        answers=tuple(deviations_by_point.values()),
        dtype=dtype,
        drawn=next((answer["drawn"] for answer in ends if "drawn" in answer), None),
        updates=next((answer["updates"] for answer in ends if "updates" in answer), None),
    )


def unlike(training: Training, other: Training) -> str:
    """How two starts of the same launch differ, with both figures; empty if they do not."""
    contents = zip(training.contents, other.contents, strict=False)
    for number, (first_batch, second_batch) in enumerate(contents, 1):
        if first_batch != second_batch:
            return f"step {number} takes other batches in each start"
    for what, first, second, tolerances in (
        ("loss", training.loss, other.loss, LOSS_TOLERANCES),
        ("norm of the gradient", training.gradient, other.gradient, TOLERANCES),
    ):
        least = 0.0
        if what == "loss":
            least = LEAST_LOSS
        apart = _relative(first, second, least)
        if apart is not None and not apart <= _tolerance(tolerances, training.dtype):
            return (
                f"the {what} of its first step is {first:.6g} in one start"
                f" and {second:.6g} in another"
            )
    return ""


def training_of(
    ranks: Sequence[Sequence[TrainedStep]],
    *,
    dtype: str | None = None,
    losses: Sequence[float | None] = (),
    batch: int = 0,
    data: int | None = None,
    drift: str = "",
) -> Training | None:
    """What ranks train together, from the reports of their steps; None before the first."""
    count = min((len(steps) for steps in ranks), default=0)
    if count == 0:
        return None
    rates, samples, contents = [], [], []
    for number in range(count):
        steps = [of_rank[number] for of_rank in ranks]
        rates.append(tuple(steps[0]["rates"]))
        samples.append(_together([step["samples"] for step in steps]))
        contents.append(_together([step.get("contents") for step in steps]))
    first = [steps[0] for steps in ranks]
    lead = first[0]
    norms = _reported([step.get("gradient") for step in first])
    reported_losses = _reported(losses)
    ends = [step["last"] for step in first if "last" in step]
    draws = [step["next_draw"] for step in first if "next_draw" in step]
    return Training(
        ranks=len(ranks),
        dtype=dtype,
        rates=tuple(rates),
        samples=tuple(samples),
        contents=tuple(contents),
        batch=batch,
        # Averaged gradients have one norm: that of any rank.
        gradient=norms[0] if len(norms) == len(ranks) else None,
        apart=bool(norms) and max(norms) > (1 + TOLERANCES["float32"]) * min(norms),
        loss=sum(reported_losses) / len(reported_losses) if reported_losses else None,
        drawn=any(step.get("drawn") for step in first),
        masked=any(step.get("masked") for step in first),
        draws_alike=len(set(draws)) < len(draws),
        dropout=None if "dropout" not in lead else any(step.get("dropout") for step in first),
        optimizer=lead.get("optimizer", {}),
        steps=lead.get("steps"),
        epoch_steps=lead.get("epoch_steps"),
        shuffled=lead.get("shuffled", False),
        loader=lead.get("loader", 0),
        unused=any(step.get("unused") for step in first),
        data=data,
        parameters=lead.get("parameters"),
        last=sum(ends) if len(ends) == len(first) else None,
        drift=drift,
    )


def _reported(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _together(digests: Sequence[int | None]) -> str | None:
    """The digest over all ranks, in any order of ranks; None if one reports none."""
    total = 0
    for digest in digests:
        if digest is None:
            return None
        total += digest
    return f"{total % (1 << 64):016x}"


def equivalent(
    typed: Training,
    plan: Training,
    model_answers: ModelAnswers | None = None,
    *,
    other_data: bool = False,
    exact: bool = False,
) -> Equivalence:
    """Compare the training of a plan with that of the current launch.

    ``model_answers``: None if the model was not checked. ``exact``: the plan promises
    the same numbers or mathematics, so it has to show its gradient if the current launch does.
    ``other_data``: the plan may have another number of samples (a recipe's launch); then only
    models and optimizers are compared.
    """
    differs: list[str] = []
    if other_data and typed.data != plan.data:
        differs += _of_optimizer(typed, plan)
        differs += _of_model(typed, plan)
        return Equivalence(
            differs=tuple(differs),
            summary="same model and optimizer; its trials took another number of samples",
        )
    differs += _of_rates(typed, plan)
    differs += _of_samples(typed, plan, model_answers)
    differs += _of_first_step(typed, plan, model_answers)
    differs += _of_optimizer(typed, plan)
    differs += _of_model(typed, plan)
    differs += _of_the_end(typed, plan)
    if exact and plan.drawn and not typed.drawn:
        differs.append("its first step draws random numbers, your current launch draws none")
    if exact and plan.gradient is None and typed.gradient is not None:
        differs.append("its ranks report no gradient of the first step, your current launch does")
    if differs:
        return Equivalence(differs=tuple(differs))
    return _agreement(typed, plan)


def _agreement(typed: Training, plan: Training) -> Equivalence:
    """What agrees between trainings in which nothing differs."""
    steps = min(len(typed.rates), len(plan.rates))
    agreed = []
    if None not in typed.samples[:steps] and typed.shuffled == plan.shuffled:
        agreed.append("samples")
    if steps:
        agreed.append("learning rate")
    summary = []
    if plan.steps:
        summary.append(f"{plan.steps} steps")
    elif plan.epoch_steps:
        summary.append(f"{plan.epoch_steps} steps an epoch")
    apart = _relative(typed.gradient, plan.gradient)
    other_batches = _why_other_batches(typed, plan)
    within = ""
    if apart is not None and not other_batches:
        agreed.append("gradient")
        within = f" ({_power(apart)})"
    if agreed:
        summary.append(f"same {_listing(agreed)}{within}")
    if other_batches and apart is not None:
        summary.append(f"gradients are of other draws: {other_batches}")
    return Equivalence(
        summary=", ".join(summary),
        allowed=tuple(_of_the_last_batch(typed, plan)),
        deviation=None if other_batches else apart,
    )


def _of_rates(typed: Training, plan: Training) -> Iterator[str]:
    for number, (as_typed, other) in enumerate(zip(typed.rates, plan.rates, strict=False), 1):
        if not all(map(_close, as_typed, other)) or len(as_typed) != len(other):
            yield (
                f"the learning rate of step {number} is {_listed(other)}, "
                f"as typed it is {_listed(as_typed)}"
            )
            return


def _of_samples(
    typed: Training, plan: Training, model_answers: ModelAnswers | None
) -> Iterator[str]:
    if typed.batch != plan.batch:
        yield f"a step takes {plan.batch} samples, as typed it takes {typed.batch}"
        return
    if typed.shuffled != plan.shuffled:
        return
    for number, (as_typed, other) in enumerate(zip(typed.samples, plan.samples, strict=False), 1):
        if None not in (as_typed, other) and as_typed != other:
            yield f"step {number} takes other samples than as typed"
            return
    contents = zip(typed.contents, plan.contents, strict=False)
    for number, (as_typed, other) in enumerate(contents, 1):
        has_numbers = None not in typed.samples[:number] + plan.samples[:number]
        # Of the same numbers they may be others only if samples are made with random numbers.
        may_differ = has_numbers and (model_answers is None or model_answers.drawn is not False)
        if not may_differ and as_typed != other:
            yield f"the batches of step {number} hold other samples than as typed"
            return


def _of_first_step(
    typed: Training, plan: Training, model_answers: ModelAnswers | None
) -> Iterator[str]:
    if plan.drift and not typed.drift:
        yield f"its ranks differ: {plan.drift}"
    if plan.apart and not typed.apart:
        yield (
            "each rank trains with its own gradient, which is averaged with no other: is the model "
            "that is trained the one that accelerator.prepare() has returned?"
        )
    if typed.ranks != plan.ranks and model_answers is not None:
        reason = model_answers.refuses_ranks(typed.ranks, plan.ranks)
        if reason is not None:
            yield reason
    draws = plan.drawn or plan.dropout
    if plan.draws_alike and not typed.draws_alike and typed.ranks != plan.ranks and draws:
        yield "two ranks draw the same random numbers for different samples"
    other_batches = _why_other_batches(typed, plan)
    if other_batches:
        yield from _of_other_draws(typed, plan, other_batches)
    else:
        yield from _of_gradient_and_loss(typed, plan)


def _of_gradient_and_loss(typed: Training, plan: Training) -> Iterator[str]:
    """Loss and gradient of the first step, computed from the same batch."""
    tolerance, loss_tolerance = OTHER_PRECISION, OTHER_PRECISION
    if typed.dtype == plan.dtype:
        tolerance = _tolerance(TOLERANCES, plan.dtype)
        loss_tolerance = _tolerance(LOSS_TOLERANCES, plan.dtype)
    apart = _relative(typed.gradient, plan.gradient)
    if apart is not None and not apart <= tolerance:
        yield (
            f"the gradient of the first step has the norm {plan.gradient:.6g}, as typed "
            f"{typed.gradient:.6g} ({tolerance:.1g} is allowed)"
        )
    apart = _relative(typed.loss, plan.loss, LEAST_LOSS)
    if apart is not None and not apart <= loss_tolerance:
        yield (
            f"the loss of the first step is {plan.loss:.6g}, as typed "
            f"{typed.loss:.6g} ({loss_tolerance:.1g} is allowed)"
        )


def _of_other_draws(typed: Training, plan: Training, other_batches: str) -> Iterator[str]:
    """A gradient of another scale, which no other draws of the same samples explain."""
    apart = _relative(typed.gradient, plan.gradient)
    if typed.shuffled != plan.shuffled or typed.ranks == plan.ranks or apart is None:
        return
    if not apart < OTHER_DRAWS - 1:
        yield (
            f"the gradient of the first step has the norm {plan.gradient:.6g}, as typed "
            f"{typed.gradient:.6g}: more than other draws make of it ({other_batches})"
        )


def _of_optimizer(typed: Training, plan: Training) -> Iterator[str]:
    settings = sorted({*typed.optimizer, *plan.optimizer} - {"class"})
    for name in ("class", *settings):
        as_typed = str(typed.optimizer.get(name, "not set"))
        other = str(plan.optimizer.get(name, "not set"))
        if as_typed != other:
            yield f"the optimizer's {name} is {other}, as typed {as_typed}"


def _of_model(typed: Training, plan: Training) -> Iterator[str]:
    if None not in (typed.parameters, plan.parameters) and typed.parameters != plan.parameters:
        yield f"it trains {plan.parameters} parameters, as typed {typed.parameters}"


def _of_the_last_batch(typed: Training, plan: Training) -> Iterator[str]:
    if None not in (typed.last, plan.last) and typed.last != plan.last:
        yield f"the last batch of each epoch has {plan.last} samples instead of {typed.last}"


def _of_the_end(typed: Training, plan: Training) -> Iterator[str]:
    for what, as_typed, other in (
        ("trains for", typed.steps, plan.steps),
        ("takes for a pass over its data", typed.epoch_steps, plan.epoch_steps),
    ):
        if None not in (as_typed, other) and as_typed != other:
            yield f"it {what} {other} steps, as typed {as_typed}"


def _why_other_batches(typed: Training, plan: Training) -> str:
    """Why losses and gradients of the first step are of other batches; empty for the same."""
    if typed.shuffled != plan.shuffled:
        return "its samples come in another order"
    if typed.masked != plan.masked:
        return "its dropout draws other masks"
    if typed.contents[:1] != plan.contents[:1]:
        return "batches of the same samples are made anew"
    return ""


def _tolerance(of: Mapping[str, float], dtype: str | None) -> float:
    return of.get(dtype or "float32", of["bfloat16"])


def _relative(first: float | None, second: float | None, least: float = 0.0) -> float | None:
    """By how much two numbers differ, of the smaller: a factor of 2 is 1, either way."""
    if first is None or second is None:
        return None
    if first == second:
        return 0.0
    scale = max(least, min(abs(first), abs(second)))
    if scale:
        return abs(first - second) / scale
    return math.inf


def _close(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=RATE_TOLERANCE, abs_tol=1e-12)


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(dict.fromkeys(f"{rate:.6g}" for rate in rates)) or "not set"


def _listing(items: Sequence[str]) -> str:
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])} and {items[-1]}"


def _power(apart: float) -> str:
    """The power of ten that a difference stays below."""
    if apart == 0:
        return "equal"
    return f"1e{math.ceil(math.log10(apart)):d}"
