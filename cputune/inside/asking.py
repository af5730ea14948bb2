"""Asks a model what a plan would make of its own batches, in a process that nobody measures.

At some points of the launch as typed (its first step; after some updates, with all weights moved a
little, so that a gate at zero hides nothing; later on) the batch in hand is trained on again: as it
is, in parts, without its padding, with other threads, in bf16. Dropout is off, and what is drawn is
the same for each sample (``draws``). Losses and gradients are told, and judged by
``cputune.plans.equivalence``. Nothing is updated meanwhile: gradients, and all state of model and
loss, are put back.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cputune.inside import ASK_VARIABLE
from cputune.inside.carry.batches import cut, encodings_of, has_tail, tensors_of
from cputune.inside.carry.unchanged import as_before
from cputune.inside.draws import Draws
from cputune.inside.messages import ModelAnswer

if TYPE_CHECKING:
    from torch import Tensor

EARLY, LATE = 3, 24
POINTS = (0, EARLY, LATE)
"""Updates before each point: the first step, early, and late."""

LATE_SECONDS = 2.0
"""Of training after which the late point has come, however few updates that were."""

QUICK_SECONDS = 1.0
"""Where the questions of the first point took longer, the early one is left to the late one."""

MOVED = 0.02
"""By how much each weight is moved before that: an initialisation has the same deviation."""

ROUNDING = 1e-7
"""Of fp32, relatively: a process that computes the same twice has the same to the bit."""

ALIKE = 1e-4
"""So far apart are turns between which is nothing but rounding: no other cutting is tried then."""

STATE = (
    "what a batch leaves in the model or its loss (a queue, a running mean) changes the next loss,"
    " and each rank would leave it of its own samples alone"
)

CALLS = "each batch changes what the next one gives, so their number in a step counts"

MOST_SECONDS = 60.0
"""That the questions take together; those that are left then are not asked."""

QUESTIONS = ("repeats", "ranks", "padding", "threads", "precision")


class UncutError(Exception):
    """A batch cannot be cut into its samples; why."""


class Asker:
    """Tells the answers of one rank, as soon as the training has come to a point.

    Attributes:
        asks: the questions of this process; none where nothing is asked.
        asking: whether a question is being asked, so that nothing else counts.
        draws: draws alike while it is.
    """

    def __init__(self, say: Callable[[ModelAnswer], None]) -> None:
        named = os.environ.get(ASK_VARIABLE, "").split(",")
        self.asks = tuple(question for question in QUESTIONS if question in named)
        self.asking = False
        self.draws = Draws()
        self._say = say
        self._optimizers: list[Any] = []
        self._point = self._updates = 0
        self._since = 0.0
        self._left = MOST_SECONDS
        self._seen: list[tuple[float, list[Any]]] = []
        self._parameters: list[Any] = []
        self._asked: tuple[object, ...] = ()
        self._weighs_items: bool | None = None
        self._following: Any = None
        self._noise = ROUNDING
        self._rows = 1

    def saw(self, optimizer: object) -> None:
        """Note an optimizer that steps: its parameters are those that train."""
        if self.asks and not any(known is optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)

    def due(self, steps: int) -> bool:
        """Whether the training has come to a point, after so many steps."""
        if not self.asks or self.asking or self._point == len(POINTS):
            return False
        self._updates = steps
        is_late = self._point == 2 and time.perf_counter() - self._since > LATE_SECONDS
        return is_late or steps >= POINTS[self._point]

    def trained(self, loss: Any) -> None:
        """Note that a batch of a question went forward and backward."""
        found = [None if p.grad is None else p.grad.detach().clone() for p in self._parameters]
        self._seen.append((float(loss), found))

    def batches(
        self,
        batch: object,
        models: Sequence[Any],
        *,
        beside: object = None,
        items: bool = False,
        size: int | None = None,
    ) -> Iterator[tuple[object, float]]:
        """The batches to train on for each question, and by what to multiply the step's items.

        The state of ``models``, and of what is ``beside`` them and computes the loss, is put back
        after each. ``items``: whether the framework tells a loss the items of the whole step.
        ``size``: the samples that the loader puts into a batch, where it says so.
        """
        point = f"after {self._updates} updates" if self._point else "at the first step"
        self._point += 1
        since = time.perf_counter()
        self._parameters = self._trained_parameters(models)
        self._asked = (*models, beside)
        with self._apart():
            if self._point > 1:
                self._move()
            count = _samples(batch)
            if size and count and count % size == 0:
                self._rows = count // size
            whole: tuple[float, list[Any]] | None = None
            for question in self.asks:
                if time.perf_counter() - since > self._left:
                    break
                self._tell(question, point, why="it failed while it was asked")
                if question == "repeats":
                    whole, again = yield from self._repeated(batch, count)
                    if items and whole is not None and self._weighs_items is None:
                        twice = yield from self._of([batch], count, factor=2.0)
                        differs = twice is not None and _differ(whole[0], twice[0]) > 0.1
                        self._weighs_items = differs
                    self._compare(question, point, whole, again)
                elif whole is not None:
                    asked = getattr(self, f"_ask_{question}")
                    yield from asked(point, batch, count, whole)
        self._since = time.perf_counter()
        took = self._since - since
        self._left -= took
        if self._point == 1 and took > QUICK_SECONDS:
            self._point = 2
        if self._point == len(POINTS):
            self._say({"event": "answer", "question": "", "point": point})

    def _repeated(self, batch: Any, count: int) -> Any:
        """The batch twice; where its first turn leaves a state that counts, each from the start.

        What it gives after itself is kept then, and how far two turns from one state are apart.
        """
        with as_before(*self._asked):
            whole = yield from self._once(batch, count)
            following = yield from self._once(batch, count)
        self._following = None
        if whole is None or following is None or _distance(whole, following) <= ROUNDING:
            return whole, following
        again = yield from self._of([batch], count)
        self._following = following
        self._noise = ROUNDING if again is None else ROUNDING + 10 * _distance(whole, again)
        return whole, again

    def _after(self, first: Any, samples: int, batch: Any, count: int) -> Any:
        """The batch with the state that another one, of so many samples, has left."""
        with as_before(*self._asked):
            yield from self._once(first, samples)
            return (yield from self._once(batch, count))

    def _ask_ranks(
        self, point: str, batch: Any, count: int, whole: Any
    ) -> Iterator[tuple[object, float]]:
        """The loss of the batch from those of its parts, as the framework weighs them.

        Where a sample has several rows, the one of two cuttings that comes closest is told.
        """
        rows = self._rows if count % self._rows == 0 else 1
        samples = count // rows
        parts = next((n for n in range(2, samples + 1) if samples % n == 0), 1)
        if parts == 1:
            self._tell("ranks", point, why="")
            return
        try:
            cuttings = [_cut_into(batch, samples, parts, rows)]
            if rows > 1:  # a loss that takes the rows the other way gives something else
                cuttings.append(_cut_into(batch, samples, samples, rows, in_turn=True))
        except UncutError as error:
            self._tell("ranks", point, why=f"the batch cannot be cut into samples: {error}")
            return
        each = count // parts
        if self._following is not None:
            self._tell("accumulation", point, why=CALLS)
            left = yield from self._after(cuttings[0][0], each, batch, count)
            if left is None or _distance(left, self._following) > self._noise:
                self._tell("ranks", point, why=STATE)
                return
        found = []
        for pieces in cuttings:
            share = 1.0 if self._weighs_items else 1 / len(pieces)
            found.append((yield from self._of(pieces, count // len(pieces), share=share)))
            if found[-1] is None or _distance(whole, found[-1]) < ALIKE:
                break
        closest = found[-1] and min(found, key=functools.partial(_distance, whole))
        self._compare("ranks", point, whole, closest)

    def _ask_padding(
        self, point: str, batch: Any, count: int, whole: Any
    ) -> Iterator[tuple[object, float]]:
        """The batch without the columns that are padding in all of its samples."""
        if not any(True for _ in encodings_of(batch)) or not has_tail(batch):
            self._tell("padding", point, why="")
            return
        shorter = yield from self._of([cut(batch)], count)
        self._compare("padding", point, whole, shorter)

    def _ask_threads(
        self, point: str, batch: Any, count: int, whole: Any
    ) -> Iterator[tuple[object, float]]:
        torch = sys.modules["torch"]
        own = torch.get_num_threads()
        torch.set_num_threads(1 if own > 1 else 2)
        try:
            other = yield from self._of([batch], count)
        finally:
            torch.set_num_threads(own)
        self._compare("threads", point, whole, other)

    def _ask_precision(
        self, point: str, batch: Any, count: int, whole: Any
    ) -> Iterator[tuple[object, float]]:
        torch = sys.modules["torch"]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = yield from self._of([batch], count)
        self._compare("precision", point, whole, rounded)

    def _of(
        self, batches: Sequence[Any], samples: int, *, share: float = 1.0, factor: float = 1.0
    ) -> Any:
        """Loss and gradient of batches together; None where one of them was not trained on."""
        loss, gradient, largest = 0.0, None, 0.0
        for part in batches:
            with as_before(*self._asked):
                found = yield from self._once(part, samples, factor=factor)
            if found is None:
                return None
            loss += share * found[0]
            largest = max(largest, found[2])
            gradient = _plus(gradient, found[1], share)
        return loss, gradient, share * largest * len(batches)

    def _once(self, batch: Any, samples: int, *, factor: float = 1.0) -> Any:
        """Loss, gradient and its norm of one turn; None where the batch was not trained on."""
        self._seen.clear()
        for parameter in self._parameters:
            parameter.grad = None
        with self.draws.alike(samples):
            yield batch, factor
        if not self._seen:
            return None
        gradient = [tensor for _, gradients in self._seen for tensor in gradients]
        return sum(loss for loss, _ in self._seen), gradient, norm(gradient)

    def _compare(self, question: str, point: str, whole: Any, other: Any) -> None:
        """Tell loss and gradient of both, and by how much the gradients are apart, relatively."""
        if whole is None or other is None:
            self._tell(question, point, why="the batch was not trained on again")
            return
        if len(whole[1]) != len(other[1]):
            self._tell(question, point, why="it goes backward another number of times")
            return
        self._say(
            {
                "event": "answer",
                "question": question,
                "point": point,
                "loss": [whole[0], other[0]],
                "gradient": [norm(whole[1]), norm(other[1])],
                "apart": _gradients_apart(whole, other),
            }
        )

    def _tell(self, question: str, point: str, *, why: str) -> None:
        """Tell why a question has no answer; with no reason, that there is nothing to ask."""
        self._say({"event": "answer", "question": question, "point": point, "why": why})

    def _trained_parameters(self, models: Sequence[Any]) -> list[Any]:
        own = [
            p for optimizer in self._optimizers for g in optimizer.param_groups for p in g["params"]
        ]
        own = own or [p for model in models for p in model.parameters() if p.requires_grad]
        return list({id(tensor): tensor for tensor in own}.values())

    def _move(self) -> None:
        """Move every weight a little; nobody trains on with them."""
        torch = sys.modules["torch"]
        dice = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self._parameters:
                parameter.add_(
                    torch.randn(parameter.shape, generator=dice).to(parameter.dtype) * MOVED
                )

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """No optimizer steps; gradients and weights are put back."""
        torch = sys.modules["torch"]
        gradients = [parameter.grad for parameter in self._parameters]
        moved = self._parameters if self._point > 1 else ()
        weights = [parameter.detach().clone() for parameter in moved]
        steps = [(optimizer, vars(optimizer).get("step")) for optimizer in self._optimizers]
        for optimizer, _ in steps:
            optimizer.step = lambda *_, **__: None
        self.asking = True
        try:
            yield
        finally:
            self.asking = False
            for optimizer, own in steps:
                if own is None:
                    del optimizer.step
                else:
                    optimizer.step = own
            with torch.no_grad():
                for parameter, kept in zip(self._parameters, weights, strict=False):
                    parameter.copy_(kept)
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient


def _samples(batch: object) -> int:
    counts = (int(tensor.shape[0]) for tensor in tensors_of(batch) if len(tensor.shape))
    return next(filter(None, counts), 0)


def _cut_into(
    batch: Any, samples: int, parts: int, rows: int, *, in_turn: bool = False
) -> list[Any]:
    """The batch in parts of as many samples each. Raises UncutError."""
    each = samples // parts
    made = [
        part_of(batch, samples, at, each, rows=rows, in_turn=in_turn)
        for at in range(0, samples, each)
    ]
    return made if has_tail(batch) else [cut(part) for part in made]  # a rank pads its own alone


def part_of(
    batch: Any, samples: int, at: int, each: int, *, rows: int = 1, in_turn: bool = False
) -> Any:
    """So many samples of a batch from one on, in the same kind of container. Raises UncutError.

    A sample may have several ``rows`` in a tensor: after the first rows of all samples come their
    second ones, as trl lays pairs of answers, or ``in_turn`` all rows of one after another.
    """
    within = functools.partial(
        part_of, samples=samples, at=at, each=each, rows=rows, in_turn=in_turn
    )
    if hasattr(batch, "shape"):
        if not len(batch.shape) or (batch.shape[0] == 1 and samples * rows > 1):
            return batch
        places = _places(int(batch.shape[0]), samples, at, each, rows, in_turn)
        if places is None:
            raise UncutError(f"it holds {tuple(batch.shape)} beside {samples * rows} samples")
        return batch[places]
    if isinstance(batch, Mapping):
        parts = {name: within(value) for name, value in batch.items()}
        try:
            return type(batch)(parts)  # type: ignore[call-arg]
        except TypeError:
            return parts
    if isinstance(batch, (list, tuple)):
        places = _places(len(batch), samples, at, each, rows, in_turn)
        if places is not None and not any(hasattr(item, "shape") for item in batch):
            picked = [batch[place] for place in places]
            return picked if isinstance(batch, list) else tuple(picked)
        made = [within(item) for item in batch]
        if isinstance(batch, list):
            return made
        return type(batch)(*made) if hasattr(batch, "_fields") else tuple(made)
    return batch


def _places(
    length: int, samples: int, at: int, each: int, rows: int, in_turn: bool
) -> list[int] | None:
    """Where so many samples from one on lie in this length; None where it is not of samples."""
    if length == samples:
        return list(range(at, at + each))
    if length != samples * rows:
        return None
    if in_turn:
        return list(range(at * rows, (at + each) * rows))
    return [first + n for first in range(0, length, samples) for n in range(at, at + each)]


def norm(gradients: Sequence[Tensor | None]) -> float:
    """The norm of gradients together, in fp64."""
    torch, squares = sys.modules["torch"], 0.0
    for gradient in gradients:
        if gradient is not None:
            held = gradient.coalesce().values() if gradient.is_sparse else gradient
            squares += float(torch.linalg.vector_norm(held, dtype=torch.float64)) ** 2
    return math.sqrt(squares) if math.isfinite(squares) else math.nan


def _plus(sums: list[Any] | None, other: Sequence[Any], share: float) -> list[Any]:
    """Gradients and a share of others, in fp64 where both are there."""
    if sums is None:
        sums = [None] * len(other)
    return [_sum(own, value, share) for own, value in zip(sums, other, strict=False)]


def _sum(own: Any, value: Any, share: float) -> Any:
    if value is None:
        return own
    part = value * share
    return part if own is None else own + part


def _gradients_apart(own: Any, other: Any) -> float:
    """The norm of the difference of two gradients, relatively."""
    scale = max(norm(own[1]), other[2])
    return norm(_plus(list(own[1]), other[1], -1.0)) / scale if scale else 0.0


def _distance(own: Any, other: Any) -> float:
    """How far two turns are apart, relatively: in loss, or in gradient where that is more."""
    if len(own[1]) != len(other[1]):
        return math.inf
    return max(_differ(own[0], other[0]), _gradients_apart(own, other))


def _differ(own: float, other: float) -> float:
    return abs(own - other) / max(abs(own), abs(other), 1e-30)
