"""Whether two launches train the same: the one as typed, and the one of a plan. Pure.

    verdict = equivalent(training_of(typed_ranks), training_of(plan_ranks))

What is compared is what each rank told of its first steps (``cputune.inside.first_steps``): the
learning rate of each step, the samples that all ranks took together, kind and settings of the
optimizer, the steps to the end; and of the first step, with dropout off, the loss and the norm of
the gradient before it is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cputune.inside.messages import Trained

TOLERANCES = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.05}
"""Of loss and gradient, relative, by what matrices are multiplied in.

fp32: sums of a million terms, added up in another order, differ by about the root of their number
times 2^-24, 6e-5 (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis").
bf16 and fp16: each of some 24 layers in a row rounds its factors anew, by 2^-9 (Higham 2002,
"Accuracy and stability of numerical algorithms", 3.1: errors of a chain add up).
"""

RATE_TOLERANCE = 1e-6
"""Of learning rates, which are computed in fp64 from the same numbers."""

DRAWN_FACTOR = 1.8
"""Between two draws of the same distribution, random numbers of the step or the like; a gradient
that grows with the ranks is twice as large on two of them. Other samples say nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What all ranks of a launch train together.

    Attributes:
        ranks: how many they are.
        dtype: what its matrix products give, "float32" or "bfloat16".
        rates: the learning rates of each step, one for each group of parameters.
        samples: for each step the digest of the samples of all ranks; None where it is a stream.
        batch: samples of the first step.
        gradient: norm of the first step's gradient, before it is clipped; None: not seen.
        apart: whether the ranks had gradients of their own, which nobody has averaged.
        loss: of the first step.
        drawn: whether the first step drew random numbers, beside dropout.
        dropout: whether its layers drop anything; None: not seen.
        content: the sum of what the first step's batches held.
        optimizer: its class and settings.
        steps: to the end; None where the script does not say.
        epoch_steps: of one pass over the data.
        shuffled: whether a plan takes the samples in an order of its own.
        loader: which of the prepared loaders it trains on.
        unused: whether parameters have no gradient.
        data: samples of the data set.
    """

    ranks: int = 1
    dtype: str | None = None
    rates: tuple[tuple[float, ...], ...] = ()
    samples: tuple[str | None, ...] = ()
    batch: int = 0
    gradient: float | None = None
    apart: bool = False
    loss: float | None = None
    drawn: bool = False
    dropout: bool | None = None
    content: float | None = None
    optimizer: Mapping[str, object] = field(default_factory=dict, hash=False)
    steps: int | None = None
    epoch_steps: int | None = None
    shuffled: bool = False
    loader: int = 0
    unused: bool = False
    data: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Whether a plan trains the same.

    Attributes:
        differs: what does not agree, a sentence each; none where it trains the same.
        summary: what does, in a line: "225 steps, same samples, learning rate and gradient (1e-6)".
    """

    differs: tuple[str, ...] = ()
    summary: str = ""

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.differs


def training_of(
    ranks: Sequence[Sequence[Trained]],
    *,
    dtype: str | None = None,
    losses: Sequence[float | None] = (),
    batch: int = 0,
    data: int | None = None,
) -> Training | None:
    """What ranks train together, by what each has told of its steps; None before the first."""
    count = min((len(told) for told in ranks), default=0)
    if count == 0:
        return None
    first = [told[0] for told in ranks]
    gradients = [one.get("gradient") for one in first]
    known = [value for value in gradients if value is not None]
    seen = [loss for loss in losses if loss is not None]
    lead = first[0]
    return Training(
        ranks=len(ranks),
        dtype=dtype,
        rates=tuple(tuple(step["rates"]) for step in ranks[0][:count]),
        samples=tuple(_together([told[n]["samples"] for told in ranks]) for n in range(count)),
        batch=batch,
        gradient=known[0] if len(known) == len(ranks) else None,
        apart=bool(known) and max(known) > (1 + TOLERANCES["float32"]) * min(known),
        loss=sum(seen) / len(seen) if seen else None,
        drawn=any(one.get("drawn") for one in first),
        dropout=None if "dropout" not in lead else any(one.get("dropout") for one in first),
        content=math.fsum(one.get("content") or 0.0 for one in first),
        optimizer=lead.get("optimizer", {}),
        steps=lead.get("steps"),
        epoch_steps=lead.get("epoch_steps"),
        shuffled=lead.get("shuffled", False),
        loader=lead.get("loader", 0),
        unused=any(one.get("unused") for one in first),
        data=data,
    )


def _together(digests: Sequence[int | None]) -> str | None:
    known = [one for one in digests if one is not None]
    return f"{sum(known) % (1 << 64):016x}" if len(known) == len(digests) else None


def equivalent(
    typed: Training, plan: Training, *, other_data: bool = False, exact: bool = False
) -> Equivalence:
    """Hold the training of a plan against that of the launch as typed.

    ``exact``: the plan promises the same numbers or the same mathematics, so it has to show its
    gradient where the launch as typed does, and may draw nothing that it does not.

    ``other_data``: the plan's may be of another number of samples, as a recipe's launch is of
    others than its trials; then their optimizers alone are compared.
    """
    steps = min(len(typed.rates), len(plan.rates))
    if other_data and typed.data != plan.data:
        differs = tuple(_of_optimizer(typed, plan))
        return Equivalence(
            differs=differs, summary="same optimizer; its trials took another number of samples"
        )
    looks = [_of_rates, _of_samples, _of_first_step, _of_optimizer, _of_the_end]
    looks += [_of_what_is_promised] if exact else []
    differs = tuple(sentence for looked in looks for sentence in looked(typed, plan))
    if differs:
        return Equivalence(differs=differs)
    agreed = ["learning rate"] if steps else []
    if None not in typed.samples[:steps] and typed.shuffled == plan.shuffled:
        agreed.insert(0, "samples")
    length = plan.steps or plan.epoch_steps
    words = [f"{length} steps" + ("" if plan.steps else " an epoch")] if length else []
    apart = _relative(typed.gradient, plan.gradient)
    why = _why_drawn(typed, plan)
    compared = apart is not None and not why
    agreed += ["gradient"] if compared else []
    same = " and ".join(filter(None, (", ".join(agreed[:-1]), *agreed[-1:])))
    within = f" ({_power(apart)})" if apart is not None and compared else ""
    words += [f"same {same}{within}"] if same else []
    words += [f"gradients are of other draws: {why}"] if why and apart is not None else []
    return Equivalence(summary=", ".join(words))


def _of_what_is_promised(typed: Training, plan: Training) -> Iterator[str]:
    if plan.drawn and not typed.drawn:
        yield "its first step draws random numbers, as typed it draws none"
    if plan.gradient is None and typed.gradient is not None:
        yield "its ranks show no gradient of the first step, as typed they do"


def _of_rates(typed: Training, plan: Training) -> Iterator[str]:
    for number, (own, other) in enumerate(zip(typed.rates, plan.rates, strict=False), 1):
        if not all(map(_close, own, other)) or len(own) != len(other):
            yield (
                f"the learning rate of step {number} is {_listed(other)}, "
                f"as typed it is {_listed(own)}"
            )
            return


def _of_samples(typed: Training, plan: Training) -> Iterator[str]:
    if typed.batch != plan.batch:
        yield f"a step takes {plan.batch} samples, as typed it takes {typed.batch}"
        return
    reshuffled = typed.shuffled != plan.shuffled
    for number, (own, other) in enumerate(zip(typed.samples, plan.samples, strict=False), 1):
        if not reshuffled and None not in (own, other) and own != other:
            yield f"step {number} takes other samples than as typed"
            return


def _of_first_step(typed: Training, plan: Training) -> Iterator[str]:
    if plan.apart and not typed.apart:
        yield "each rank trains with a gradient of its own: they are not averaged"
    why = _why_drawn(typed, plan)
    allowed = DRAWN_FACTOR - 1 if why else max(_tolerance(typed), _tolerance(plan))
    if typed.shuffled != plan.shuffled:
        return
    for what, own, other in (
        ("gradient", typed.gradient, plan.gradient),
        ("loss", typed.loss, plan.loss),
    ):
        apart = _relative(own, other)
        if apart is not None and not apart <= allowed:
            norm = " has the norm" if what == "gradient" else " is"
            yield (
                f"the {what} of the first step{norm} {other:.6g}, as typed {own:.6g}"
                f" ({allowed:.1g} is allowed{f': {why}' if why else ''})"
            )


def _of_optimizer(typed: Training, plan: Training) -> Iterator[str]:
    for name in dict.fromkeys(("class", *sorted({*typed.optimizer, *plan.optimizer}))):
        own, other = (str(one.optimizer.get(name, "not set")) for one in (typed, plan))
        if own != other:
            yield f"the optimizer's {name} is {other}, as typed {own}"


def _of_the_end(typed: Training, plan: Training) -> Iterator[str]:
    for what, own, other in (
        ("trains for", typed.steps, plan.steps),
        ("takes for a pass over its data", typed.epoch_steps, plan.epoch_steps),
    ):
        if None not in (own, other) and own != other:
            yield f"it {what} {other} steps, as typed {own}"


def _why_drawn(typed: Training, plan: Training) -> str:
    """Why losses and gradients agree only as two draws do; empty where they must be equal."""
    if typed.drawn or plan.drawn:
        return "the step draws random numbers"
    if typed.shuffled != plan.shuffled:
        return "its samples come in another order"
    if None in (*typed.samples[:1], *plan.samples[:1]):
        return "its samples have no numbers"
    if not _close(typed.content or 0.0, plan.content or 0.0):
        return "batches of the same samples are made anew"
    return ""


def _tolerance(one: Training) -> float:
    return TOLERANCES.get(one.dtype or "float32", TOLERANCES["bfloat16"])


def _relative(own: float | None, other: float | None) -> float | None:
    """By how much two numbers differ, of the smaller: a factor of 2 is 1, either way."""
    if own is None or other is None:
        return None
    least = min(abs(own), abs(other))
    if own == other:
        return 0.0
    return abs(own - other) / least if least else math.inf


def _close(own: float, other: float) -> bool:
    return math.isclose(own, other, rel_tol=RATE_TOLERANCE, abs_tol=1e-12)


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(dict.fromkeys(f"{rate:.6g}" for rate in rates)) or "not set"


def _power(apart: float) -> str:
    """The power of ten that a difference stays below."""
    return "equal" if apart == 0 else f"1e{math.ceil(math.log10(apart)):d}"
