"""Checks with a model what a plan would change in its training, in a process that is not measured.

At some points of the current launch (its first step; after some updates, with all weights moved a
little, so that a gate at zero hides nothing; later on) the current batch is trained on again: as it
is, in parts, without its padding, with other threads, in bf16. Dropout is off, and other draws are
the same for each sample (``draws``). Losses and gradients are reported, and judged by
``cputune.plans.equivalence``. Nothing is updated meanwhile: gradients, and all state of model and
loss, are restored.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cputune.inside import ASK_VARIABLE
from cputune.inside.applying.trimming import cut, encodings_of, has_tail
from cputune.inside.applying.unchanged import as_before
from cputune.inside.asked_points import Points
from cputune.inside.cutting import UncutError, cut_into, samples_of
from cputune.inside.draws import SEED, Draws, state_of_all
from cputune.inside.later import at_step, later_steps
from cputune.inside.messages import ModelAnswer
from cputune.inside.nearness import differ, distance, gradients_apart, norm, plus
from cputune.inside.sources import Sources

# How much each weight is moved: the deviation of a usual initialisation.
MOVED = 0.02

# Of fp32, relative.
ROUNDING = 1e-7

# Turns that differ by less differ by rounding only: no other cutting is tried.
ALIKE = 1e-4

STATE = (
    "what a batch leaves in the model or its loss (a queue, a running mean) changes the next loss,"
    " and each rank would leave it of its own samples alone"
)

CALLS = "each batch changes what the next one gives, so their number in a step counts"

CHANCE = (
    "random numbers that are drawn once for a whole batch change its {}, and each rank would draw"
    " its own"
)

NOISE = (
    "random numbers are drawn between the gradient and the update (noise in the optimizer), and"
    " each rank would draw its own"
)

THAWED = (
    "{} parameters are trained that were frozen at the first step, and DistributedDataParallel"
    " averages those alone that were trained when it was made"
)

NOT_AGAIN = (
    "its loop did not train on the same batch when it was given once more: it leaves out some"
    " batches, or stops after a number of them"
)

ROWS = "its collator makes {} of {} samples, which cannot be divided"

# Other seeds, for a batch that draws random numbers once for all of its samples.
SEEDS = 5

# The most backward passes of a step that are averaged one after the other.
REPLAYED = 4

QUESTIONS = ("repeats", "samples", "ranks", "padding", "threads", "precision")


def _trainable(models: Sequence[Any]) -> list[Any]:
    """The parameters of these models that need gradients."""
    parameters = []
    for model in models:
        parameters += [one for one in model.parameters() if one.requires_grad]
    return parameters


def exchanged(of_parts: Sequence[Sequence[tuple[str, Any]]]) -> list[Any]:
    """What every rank gets of the values of all: one after the other, their sum or their mean.

    None: it keeps its own.
    """
    torch, received = sys.modules["torch"], list[Any]()
    for together in zip(*of_parts, strict=False):
        values = [value for _, value in together]
        if not all(isinstance(value, torch.Tensor) for value in values):
            break
        reduction = together[0][0]
        if not reduction:
            rows = [value if value.ndim else value[None] for value in values]
            received.append(torch.cat(rows))
        elif reduction == "none":
            received.append(None)
        else:
            total = sum(values)
            received.append(total / len(values) if reduction == "mean" else total)
    return received


class Asker:
    """Reports the answers of one rank when the training has come to a point.

    Attributes:
        asks: the questions of this process.
        asking: a question is being answered, so nothing else counts.
        draws: draws alike meanwhile.
        sources: what the batches are made of.
    """

    def __init__(self, say: Callable[[ModelAnswer], None]) -> None:
        named = os.environ.get(ASK_VARIABLE, "").split(",")
        self.asks = tuple(question for question in QUESTIONS if question in named)
        self.asking = False
        self.draws = Draws()
        self.sources = Sources(self.draws)
        self._points = Points(of_script="samples" in self.asks)
        self._say = say
        self._optimizers: list[Any] = []
        self._finished = False
        self._seen: list[tuple[float, list[Any]]] = []
        self._parameters: list[Any] = []
        self._weights: list[Any] = []
        self._trained_first: set[int] = set()
        self._asked: tuple[object, ...] = ()
        self._later: list[int] = []
        self._weighs_items: bool | None = None
        self._following: Any = None
        self._noise = ROUNDING
        self._rows = 1
        self._is_spread = False
        self._random_state: object = None
        self._adds_noise = False
        self._backwards: list[list[Any]] = []
        self._averaged: list[list[Any]] = []
        self._sent: list[tuple[str, Any]] = []
        self._received: list[Any] = []

    @property
    def is_answered(self) -> bool:
        """Whether the batch of a question, or a part of it, was trained on."""
        return bool(self._seen)

    @property
    def looks_at_samples(self) -> bool:
        """Whether this process has to know what its batches are made of."""
        return "samples" in self.asks

    def saw(self, optimizer: object) -> None:
        """Note an optimizer that steps: its parameters are those that train."""
        if self.asks and not any(noted is optimizer for noted in self._optimizers):
            self._optimizers.append(optimizer)

    def due(self, steps: int) -> bool:
        """Whether the training has come to a point, after this number of steps."""
        if not self.asks or self.asking:
            return False
        due = self._points.due(steps)
        if self._points.are_over:
            self.finish()
        return due

    def finish(self) -> None:
        """Tell that this was all, once."""
        if self.asks and not self._finished:
            self._finished = self._points.are_over = True
            end: ModelAnswer = {"event": "answer", "question": "", "point": ""}
            end["updates"] = self._points.updates
            if self.sources.drawn is not None:
                end["drawn"] = self.sources.drawn
            self._say(end)

    def begin_pass(self) -> None:
        """A new pass over the data may begin a new stage of training."""
        if not self.asking:
            self._points.begin_pass()

    def trained(self, loss: Any) -> None:
        """Note that a batch of a question went forward and backward."""
        self._seen.append((float(loss), self._gradients()))

    def _gradients(self) -> list[Any]:
        return [None if p.grad is None else p.grad.detach().clone() for p in self._parameters]

    def went_backward(self) -> None:
        """Called after each backward pass of a question: ranks average their gradients there."""
        place = len(self._backwards)
        if place < REPLAYED:
            self._backwards.append(self._gradients())
        if place < len(self._averaged):
            for parameter, gradient in zip(self._parameters, self._averaged[place], strict=True):
                parameter.grad = None if gradient is None else gradient.clone()

    def gathered(self, value: Any, *, reduction: str = "") -> Any:
        """What a rank gets if all ranks exchange values: its own, or those of all parts."""
        if not self.asking:
            return value
        place = len(self._sent)
        self._sent.append((reduction, value))
        received = self._received[place] if place < len(self._received) else None
        return value if received is None else received

    def after_gradient(self) -> None:
        """Note the state of all generators after a backward pass."""
        if self.looks_at_samples:
            self._random_state = state_of_all()

    def after_update(self) -> None:
        """Note whether anything was drawn since."""
        if self._random_state is not None and not self._adds_noise:
            self._adds_noise = self._random_state != state_of_all()
        self._random_state = None

    def batches(
        self,
        batch: object,
        models: Sequence[Any],
        *,
        beside: object = None,
        items: bool = False,
        size: int | None = None,
        steps: int | None = None,
    ) -> Iterator[tuple[object, float]]:
        """The batches to train on for each question, and a factor for the step's items.

        The state of ``models`` and of ``beside``, which computes the loss, is restored after each.
        ``items``: the framework passes a loss the items of the whole step. ``size``: the samples of
        a batch, if the loader reports it. ``steps``: of the whole training.
        """
        self._points.begin()
        point = self._points.name
        self._parameters = self._trained_parameters(models)
        self._asked, self._later = (*models, beside), later_steps(beside, steps)
        with self._apart():
            count = samples_of(batch)
            if size and count and count % size == 0:
                self._rows = count // size
            # What a draw makes of one sample alone is seen if the others have other draws.
            self._is_spread = self._rows == 1 and self._points.number % 2 == 0
            self._ask_samples(point, models)
            uncut: tuple[float, list[Any]] | None = None
            asking = {
                "ranks": self._ask_ranks,
                "padding": self._ask_padding,
                "threads": self._ask_threads,
                "precision": self._ask_precision,
            }
            for question in self.asks:
                if not self._points.has_time:
                    break
                if question == "samples":
                    continue
                self._tell(question, point, reason="it failed during the check")
                if question == "repeats":
                    uncut, again = yield from self._repeated(batch, count)
                    if items and uncut is not None and self._weighs_items is None:
                        twice = yield from self._of([batch], count, factor=2.0)
                        differs = twice is not None and differ(uncut[0], twice[0]) > 0.1
                        self._weighs_items = differs
                    self._compare(question, point, uncut, again)
                elif uncut is not None:
                    yield from asking[question](point, batch, count, uncut)
        self._points.end()
        if self._points.are_over:
            self.finish()

    def _ask_samples(self, point: str, models: Sequence[Any]) -> None:
        """What the batches are made of; the weights are moved meanwhile, after the first point."""
        looks = "samples" in self.asks
        before = None
        if looks:
            trained = {id(parameter) for parameter in _trainable(models)}
            self._trained_first = self._trained_first or trained
            thawed = len(trained - self._trained_first)
            self._tell("parameters", point, reason=THAWED.format(thawed) if thawed else "")
            for question, reason in self.sources.ask():
                self._tell(question, point, reason=reason)
            if self._points.number > 1:
                before = self.sources.figure()
        if self._points.number > 1:
            self._move()
            self._weights = [parameter.detach().clone() for parameter in self._parameters]
            if looks and before is not None:
                self._tell("weights", point, reason=self.sources.depends_on_weights(before))

    def _repeated(self, batch: Any, count: int) -> Any:
        """The batch twice. If the first turn leaves a state that counts, each from the same
        start.
        """
        with as_before(*self._asked):
            uncut = yield from self._once(batch, count)
            following = yield from self._once(batch, count)
        self._following = None
        if uncut is None or following is None or distance(uncut, following) <= ROUNDING:
            return uncut, following
        again = yield from self._of([batch], count)
        self._following = following
        self._noise = ROUNDING if again is None else ROUNDING + 10 * distance(uncut, again)
        return uncut, again

    def _after(self, first: Any, samples: int, batch: Any, count: int) -> Any:
        """The batch with the state that another one, of this number of samples, has left."""
        with as_before(*self._asked):
            yield from self._once(first, samples)
            return (yield from self._once(batch, count))

    def _ask_ranks(
        self, point: str, batch: Any, count: int, uncut: Any
    ) -> Iterator[tuple[object, float]]:
        """The loss of the batch from those of its parts, and of a batch with rare samples."""
        if "samples" in self.asks:
            yield from self._ask_draws(point, batch, count, uncut)
        yield from self._ask_parts("ranks", point, batch, count, uncut)
        if "samples" in self.asks and self._points.number == 2:
            yield from self._ask_later(batch, count, uncut)
        if "samples" in self.asks and self._points.number <= 2:
            rare_batch = self.sources.of_rare_samples()
            if rare_batch is not None:
                rare, size = rare_batch
                count = samples_of(rare)
                if size and count % size == 0:
                    self._rows = count // size
                uncut = yield from self._of([rare], count)
                if uncut is not None:
                    yield from self._ask_parts("rare", point, rare, count, uncut)

    def _ask_later(self, batch: Any, count: int, uncut: Any) -> Iterator[tuple[object, float]]:
        """The parts of the batch once more if its loss changes later."""
        for step in self._later:
            with at_step(self._asked[-1], step):
                later = yield from self._of([batch], count)
                if later is not None and distance(uncut, later) > ALIKE:
                    yield from self._ask_parts(
                        "ranks", f"as after {step} updates", batch, count, later
                    )

    def _ask_draws(
        self, point: str, batch: Any, count: int, uncut: Any
    ) -> Iterator[tuple[object, float]]:
        """Whether draws for a whole batch change what it trains."""
        if self._adds_noise:
            self._tell("draws", point, reason=NOISE)
            return
        for number in range(SEEDS if self.draws.once else 0):
            other = yield from self._of([batch], count, seed=SEED + 1000 * (number + 1))
            if other is None:
                return
            if not distance(uncut, other) <= ALIKE:
                figures = f"{uncut[0]:.6g}", f"{other[0]:.6g}"
                what = f"loss ({figures[0]}, and {figures[1]})"
                if figures[0] == figures[1]:
                    what = f"gradient (by {gradients_apart(uncut, other):.2g} of its norm)"
                self._tell("draws", point, reason=CHANCE.format(what))
                return
        self._tell("draws", point, reason="")

    def _ask_parts(
        self, question: str, point: str, batch: Any, count: int, uncut: Any
    ) -> Iterator[tuple[object, float]]:
        """The loss of the batch from those of its parts, as the framework weighs them.

        If a sample has several rows, the better one of two cuttings is reported.
        """
        rows = 1
        if count % self._rows == 0:
            rows = self._rows
        samples = count // rows
        parts = next((n for n in range(2, samples + 1) if samples % n == 0), 1)
        made_of = self.sources.size or 1
        if parts == 1 or (question == "ranks" and count % made_of):
            rows_text = "one row" if count == 1 else f"{count} rows"
            reason = ROWS.format(rows_text, made_of) if count % made_of else ""
            self._tell(question, point, reason=reason)
            return
        try:
            cuttings = [cut_into(batch, samples, parts, rows)]
            shorter = cuttings[0] if has_tail(batch) else [cut(part) for part in cuttings[0]]
            if rows > 1:  # a loss that takes the rows the other way gives something else
                # A rank collates samples of several rows itself, and pads them alone.
                cuttings = [shorter, cut_into(batch, samples, samples, rows, in_turn=True)]
        except UncutError as error:
            self._tell(question, point, reason=f"the batch cannot be cut into samples: {error}")
            return
        each = count // parts
        if self._following is not None and question == "ranks":
            self._tell("accumulation", point, reason=CALLS)
            after_part = yield from self._after(cuttings[0][0], each, batch, count)
            if after_part is None or distance(after_part, self._following) > self._noise:
                self._tell("ranks", point, reason=STATE)
                return
        closest = yield from self._closest(cuttings, count, uncut)
        self._compare(question, point, uncut, closest)
        is_padded = shorter is not cuttings[0] and any(map(has_tail, cuttings[0]))
        if question == "ranks" and is_padded and self._following is None:
            # Parts that are accumulated are collated one by one, and padded alone.
            alone = yield from self._together(shorter, each, uncut)
            self._compare("accumulation", point, uncut, alone)

    def _closest(self, cuttings: Sequence[Sequence[Any]], count: int, uncut: Any) -> Any:
        """What comes closest to the uncut batch, of several ways to cut it."""
        turns = []
        for pieces in cuttings:
            turns.append((yield from self._together(pieces, count // len(pieces), uncut)))
            if turns[-1] is None or distance(uncut, turns[-1]) < ALIKE:
                break
        return turns[-1] and min(turns, key=functools.partial(distance, uncut))

    def _together(self, pieces: Sequence[Any], samples: int, uncut: Any) -> Any:
        """Parts of a batch as ranks train on them, which average after each backward pass.

        It matters if a step goes backward more than once and uses the first gradient in between
        (SAM): then the passes are repeated with the average of the earlier ones.
        """
        if self._weighs_items:
            share = 1.0
        else:
            share = 1 / len(pieces)
        self._averaged = []
        joined = yield from self._of(pieces, samples, share=share)
        passes = len(self._backwards)
        if joined is None or distance(uncut, joined) < ALIKE:
            return joined
        if self._sent:
            return (yield from self._exchanging(pieces, samples, uncut))
        if not 1 < passes <= REPLAYED:
            return joined
        try:
            for place in range(passes - 1):
                sums: list[Any] | None = None
                for number, part in enumerate(pieces):
                    with as_before(*self._asked):
                        turn = yield from self._once(part, samples, first=number * samples)
                    if turn is None or place >= len(self._backwards):
                        return joined
                    sums = plus(sums, self._backwards[place], share)
                self._averaged.append(sums or [])
            return (yield from self._of(pieces, samples, share=share))
        finally:
            self._averaged = []

    def _exchanging(self, pieces: Sequence[Any], samples: int, uncut: Any) -> Any:
        """Parts of a batch as ranks train on them that exchange values (their numbers of tokens).

        A loss that is divided by the tokens of all ranks is multiplied by their number, because
        their gradients are averaged. Here the script sees one rank, so both scales are tried.
        """
        of_parts: list[list[tuple[str, Any]]] = []
        for number, part in enumerate(pieces):
            with as_before(*self._asked):
                yield from self._once(part, samples, first=number * samples)
            of_parts.append(self._sent)
        self._received = exchanged(of_parts)
        try:
            turns = []
            for share in (1 / len(pieces), 1.0):
                turns.append((yield from self._of(pieces, samples, share=share)))
                if turns[-1] is None or distance(uncut, turns[-1]) < ALIKE:
                    return turns[-1]
        finally:
            self._received = []
        return min(turns, key=functools.partial(distance, uncut))

    def _ask_padding(
        self, point: str, batch: Any, count: int, uncut: Any
    ) -> Iterator[tuple[object, float]]:
        """The batch without the columns that are padding in all of its samples."""
        if not any(True for _ in encodings_of(batch)) or not has_tail(batch, 1):
            self._tell("padding", point, reason="")
            return
        # To the last column that is used: what looks beyond a token (a convolution) sees it.
        shorter = yield from self._of([cut(batch, 1)], count)
        if shorter is None:
            shorter = yield from self._of([cut(batch)], count)
        self._compare("padding", point, uncut, shorter)

    def _ask_threads(
        self, point: str, batch: Any, count: int, uncut: Any
    ) -> Iterator[tuple[object, float]]:
        torch = sys.modules["torch"]
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if threads > 1 else 2)
        try:
            other = yield from self._of([batch], count)
        finally:
            torch.set_num_threads(threads)
        self._compare("threads", point, uncut, other)

    def _ask_precision(
        self, point: str, batch: Any, count: int, uncut: Any
    ) -> Iterator[tuple[object, float]]:
        torch = sys.modules["torch"]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = yield from self._of([batch], count)
        self._compare("precision", point, uncut, rounded)

    def _of(
        self,
        batches: Sequence[Any],
        samples: int,
        *,
        share: float = 1.0,
        factor: float = 1.0,
        seed: int = SEED,
    ) -> Any:
        """Loss and gradient of batches together; None if one of them was not trained on."""
        loss, gradient, largest = 0.0, None, 0.0
        for number, part in enumerate(batches):
            with as_before(*self._asked):
                turn = yield from self._once(
                    part, samples, factor=factor, seed=seed, first=number * samples
                )
            if turn is None:
                return None
            loss += share * turn[0]
            largest = max(largest, turn[2])
            gradient = plus(gradient, turn[1], share)
        return loss, gradient, share * largest * len(batches)

    def _once(
        self, batch: Any, samples: int, *, factor: float = 1.0, seed: int = SEED, first: int = 0
    ) -> Any:
        """Loss, gradient and its norm of one turn; None if the batch was not trained on.

        ``first``: the place of its first sample in the whole batch.
        """
        self._seen.clear()
        self._backwards, self._sent = [], []
        for parameter in self._parameters:
            parameter.grad = None
        with self.draws.alike(samples, seed=seed, first=first if self._is_spread else None):
            yield batch, factor
        with sys.modules["torch"].no_grad():  # a step may move the weights, and back (SAM)
            for parameter, kept in zip(self._parameters, self._weights, strict=True):
                parameter.copy_(kept)
        if not self._seen:
            return None
        total, gradient = 0.0, []
        for loss, gradients in self._seen:
            total += loss
            gradient += gradients
        return total, gradient, norm(gradient)

    def _compare(self, question: str, point: str, uncut: Any, other: Any) -> None:
        """Report loss and gradient of both, and the relative difference of the gradients."""
        if uncut is None or other is None:
            self._tell(question, point, reason=NOT_AGAIN)
            return
        if len(uncut[1]) != len(other[1]):
            self._tell(question, point, reason="it runs the backward pass another number of times")
            return
        self._say(
            {
                "event": "answer",
                "question": question,
                "point": point,
                "loss": [uncut[0], other[0]],
                "gradient": [norm(uncut[1]), norm(other[1])],
                "apart": gradients_apart(uncut, other),
            }
        )

    def _tell(self, question: str, point: str, *, reason: str) -> None:
        """Report why a question has no answer; without a reason there is nothing to check."""
        self._say({"event": "answer", "question": question, "point": point, "why": reason})

    def _trained_parameters(self, models: Sequence[Any]) -> list[Any]:
        parameters = []
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                parameters += group["params"]
        if not parameters:
            parameters = _trainable(models)
        return list({id(tensor): tensor for tensor in parameters}.values())

    def _move(self) -> None:
        """Move every weight a little. The training does not continue with them."""
        torch = sys.modules["torch"]
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self._parameters:
                parameter.add_(
                    torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * MOVED
                )

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """No optimizer steps; gradients and weights are put back."""
        torch = sys.modules["torch"]
        gradients = [parameter.grad for parameter in self._parameters]
        weights = [parameter.detach().clone() for parameter in self._parameters]
        self._weights = weights
        steps = [(optimizer, vars(optimizer).get("step")) for optimizer in self._optimizers]
        for optimizer, _ in steps:
            optimizer.step = lambda *_, **__: None
        self.asking = True
        try:
            yield
        finally:
            self.asking = False
            for optimizer, step in steps:
                if step is None:
                    del optimizer.step
                else:
                    optimizer.step = step
            with torch.no_grad():
                for parameter, kept in zip(self._parameters, weights, strict=True):
                    parameter.copy_(kept)
            self._weights = []
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
