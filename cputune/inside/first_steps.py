"""Records what this rank trains in its first steps, which no plan may change.

For each step: the learning rates, the samples and their content. For the first step also the
gradient before clipping, without dropout and with the same draws for each sample.
``cputune.plans.equivalence`` compares the reports of two launches.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cputune.inside.applying.apart import draw_apart, rank_of_this
from cputune.inside.applying.gradient_traffic import has_many_rows
from cputune.inside.applying.hooking import Hook, Original
from cputune.inside.applying.parts import the_parts
from cputune.inside.contents import contents_of
from cputune.inside.equivalence_check import Asker
from cputune.inside.messages import RANK_NAMES, TrainedStep, number_from
from cputune.inside.nearness import norm

if TYPE_CHECKING:
    from torch.optim import Optimizer

# Steps that are reported: a schedule that runs twice as fast differs at the second.
LOOKED_AT = 4

DROPOUTS = (
    "dropout",
    "alpha_dropout",
    "feature_alpha_dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
)


class FirstSteps:
    """One per rank; the meter takes what it has seen when a step is reported.

    Attributes:
        facts: of the whole training, reported with the first step.
        sent: bytes of its gradients, and without the rows that it has not touched.
        mask_elements: of the masks of dropout that the first step draws; attention_drops: attention
            draws some of them.
    """

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self.facts: TrainedStep = {}
        self.sent = 0, 0
        self._steps = 0
        self._seed = number_from(RANK_NAMES)
        self._samples: list[int | None] = []
        self._fetched: deque[int | None] = deque(maxlen=1024)
        self._rates: list[float] | None = None
        self._gradient: float | None = None
        self._contents: list[int | None] = []
        self._drops = False
        self.mask_elements = 0
        self.attention_drops = False
        self._alike = contextlib.ExitStack()
        self._compiling: Callable[[], bool] = lambda: False

    def hooks(self) -> list[Hook]:
        """Hooks in torch's loaders, dropouts and clipping; and seeds.

        A script without a seed takes the same samples in each trial. Every rank has another seed,
        so that what ranks would not agree on shows.
        """
        random.seed(self._seed)
        functional, clip = "torch.nn.functional", "torch.nn.utils"
        return [
            ("numpy", "", self._begin_numpy),
            ("torch", "", self._begin_torch),
            *((functional, name, self._dropout) for name in DROPOUTS),
            (functional, "scaled_dot_product_attention", self._attend),
            *((clip, name, self._clip) for name in ("clip_grad_norm_", "clip_grad_value_")),
            ("torch.utils.data.dataloader", "_BaseDataLoaderIter._next_index", self._next_index),
            *self._hooks_of_samples(),
        ]

    def _hooks_of_samples(self) -> list[Hook]:
        """Only if the trial asks what batches are made of."""
        if not self._asker.looks_at_samples:
            return []
        stream = "torch.utils.data._utils.fetch", "_IterableDatasetFetcher.fetch"
        return [(*stream, self._asker.sources.stream)]

    def _begin_numpy(self, numpy: Any) -> None:
        numpy.random.seed(self._seed)

    def _begin_torch(self, torch: Any) -> None:
        torch.manual_seed(self._seed)
        compiler = getattr(torch, "compiler", None)
        self._compiling = getattr(compiler, "is_compiling", self._compiling)

    def batch(self, batch: object, samples: int) -> None:
        """Note that a batch begins to be trained on; in the first step its draws are alike."""
        if self._steps < LOOKED_AT:
            self._contents.append(contents_of(batch))
        if self._steps == 0:
            self._alike.close()
            draw_apart_now()
            self._alike.enter_context(self._asker.draws.alike(samples))

    def trained(self) -> None:
        """Note that a batch went forward and backward."""
        self._alike.close()
        if self._asker.looks_at_samples:
            self._asker.sources.trained()
            self._asker.draws.after_gradient()
        if self._steps < LOOKED_AT:
            nothing = 0 if is_given_batches() else None  # rank 0 takes the samples of all
            self._samples.append(self._fetched.popleft() if self._fetched else nothing)

    def begin(self) -> None:
        """Forget what was fetched so far: it was not trained on."""
        if self._steps == 0:
            self._fetched.clear()
            self._contents.clear()

    def step(self, optimizer: object) -> TrainedStep | None:
        """What to report of this step; None once enough was reported."""
        self._asker.draws.after_update()
        if self._steps >= LOOKED_AT:
            return None
        self._steps += 1
        step: TrainedStep = {
            "rates": self._rates or [],
            "samples": _sum_of(self._samples),
            "contents": _sum_of(self._contents),
        }
        if self._steps == 1:
            step.update(self.facts)
            step["gradient"] = self._gradient
            step["dropout"], step["drawn"] = self._drops, self._asker.draws.drew
            masks = the_parts().get("dropout")
            step["masked"] = masks is not None and bool(masks.drawn)
            step["optimizer"] = settings(optimizer)
            if "torch" in sys.modules:
                step["next_draw"] = drawn_next()
            order = the_parts().get("order")
            if order is not None and order.why is None:
                step["shuffled"] = True
        self._samples, self._contents, self._rates = [], [], None
        return step

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Called before an optimizer steps: all gradients are there, except those of a closure."""
        closure = any(map(callable, (*args, *kwargs.values())))
        if closure or self._steps >= LOOKED_AT or self._rates is not None:
            return
        groups = optimizer.param_groups
        self._rates = [float(group["lr"]) for group in groups if "lr" in group]
        if self._steps == 0:
            parameters: list[Any] = []
            for group in groups:
                parameters += group["params"]
            self.facts["parameters"] = trained_numbers(optimizer, parameters)
            trainable = [parameter for parameter in parameters if parameter.requires_grad]
            self.facts["unused"] = any(parameter.grad is None for parameter in trainable)
            if self._gradient is None:
                self._gradient = norm_of(parameters)
            self.sent = bytes_of(parameters)

    def _clip(self, original: Original, parameters: Any, *args: object, **kwargs: object) -> object:
        if self._steps == 0 and self._gradient is None:
            if hasattr(parameters, "grad"):
                parameters = [parameters]
            else:
                parameters = list(parameters)
            self._gradient = norm_of(parameters)
        return original(parameters, *args, **kwargs)

    @property
    def _rests(self) -> bool:
        """Whether dropout is off now; never if a plan draws the masks in another way."""
        first = self._steps == 0 or self._asker.turns.are_on
        return first and "dropout" not in the_parts()

    # Dropout is off until the first step is over; not in what torch.compile compiles.

    def _dropout(
        self,
        original: Original,
        input: Any,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> object:
        if not self._compiling():
            if training and p > 0:
                self._see_mask(input.numel())
            training = training and not self._rests
        return original(input, p, training, inplace)

    def _attend(
        self,
        original: Original,
        query: Any,
        key: Any,
        value: object,
        attn_mask: object = None,
        dropout_p: float = 0.0,
        *args: object,
        **kwargs: object,
    ) -> object:
        if not self._compiling():
            if dropout_p > 0:
                self._see_mask(query.shape[:-1].numel() * key.shape[-2])
                self.attention_drops = True
            if self._rests:
                dropout_p = 0.0
        return original(query, key, value, attn_mask, dropout_p, *args, **kwargs)

    def _see_mask(self, elements: int) -> None:
        """Note that a mask of dropout is drawn."""
        self._drops = True
        if self._steps == 0:
            self.mask_elements += elements

    def _next_index(self, original: Original, iterator: object) -> object:
        index = original(iterator)
        if self._asker.looks_at_samples:
            self._asker.sources.asked(iterator, index)
        if self._steps < LOOKED_AT:
            iterator.__dict__.setdefault("_cputune_asked", deque()).append(digest_of(index))
        return index

    def fetched(self, iterator: object) -> None:
        """Note which samples a batch holds, as batches come."""
        if self._asker.looks_at_samples:
            self._asker.sources.fetched(iterator)
        if waiting := iterator.__dict__.get("_cputune_asked"):
            self._fetched.append(waiting.popleft())


def is_given_batches() -> bool:
    """Whether this rank gets its batches from rank 0 (``applying.dispatch``)."""
    dispatch = the_parts().get("dispatch")
    return dispatch is not None and bool(dispatch.receives)


def draw_apart_now() -> None:
    """Do what ``rank.py --draw apart`` asks for, which it does itself in the first DDP.forward.

    Within the first step ``Draws.alike`` sets the generators, and then restores their old states:
    what ``rank.py`` sets there would be lost.
    """
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel is None:
        return
    forward = parallel.DistributedDataParallel.forward
    names = getattr(getattr(forward, "__code__", None), "co_freevars", ())
    held = dict(zip(names, getattr(forward, "__closure__", None) or (), strict=False))
    options = held["options"].cell_contents if "options" in held else None
    if isinstance(options, dict) and options.pop("--draw", "") == "apart":
        draw_apart(rank_of_this())


def drawn_next() -> str:
    """A digest of the numbers that torch draws next in this rank."""
    state = sys.modules["torch"].get_rng_state()
    return hashlib.blake2b(state.numpy().tobytes(), digest_size=8).hexdigest()


def trained_numbers(optimizer: object, parameters: Iterable[Any]) -> int:
    """How many numbers an optimizer trains.

    IPEX 2.8 keeps weights in blocks that are filled up with zeros; their original shape is in
    ``params_attr`` of the optimizer (intel_extension_for_pytorch/nn/utils/_parameter_wrapper.py).
    """
    blocked = getattr(optimizer, "params_attr", {})
    count = 0
    for parameter in parameters:
        if parameter.requires_grad:
            plain = getattr(blocked.get(parameter), "plain_format_shape", None)
            count += int(parameter.numel()) if plain is None else math.prod(plain)
    return count


def norm_of(parameters: Iterable[object]) -> float | None:
    """The norm of all gradients together, in fp64; None without gradients."""
    gradients: list[Any] = [getattr(parameter, "grad", None) for parameter in parameters]
    if all(gradient is None for gradient in gradients):
        return None
    return norm(gradients)


def bytes_of(parameters: Iterable[Any]) -> tuple[int, int]:
    """Bytes of all gradients, and without the zero rows of large ones."""
    total = touched = 0
    for parameter in parameters:
        gradient = getattr(parameter, "grad", None)
        if gradient is None or gradient.is_sparse:
            continue
        size = gradient.numel() * gradient.element_size()
        total += size
        if has_many_rows(parameter):
            size = int(gradient.count_nonzero(1).count_nonzero()) * size // len(gradient)
        touched += size
    return total, touched


def settings(optimizer: object) -> dict[str, Any]:
    """The class of an optimizer and the settings of its groups, without learning rates."""
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    how = {"params", "lr", "initial_lr", "fused", "foreach", "capturable", "differentiable"}
    described: dict[str, Any] = {"class": type(inner).__name__, "learning rate": []}
    for group in getattr(inner, "param_groups", ()):
        rate = f"{float(group.get('initial_lr', group.get('lr', 0.0))):.6g}"
        if rate not in described["learning rate"]:
            described["learning rate"].append(rate)
        for name, value in group.items():
            plain = isinstance(value, (bool, int, float, str, tuple, list)) or value is None
            if name not in how and plain:
                values = described.setdefault(name, [])
                if str(value) not in values:
                    values.append(str(value))
    return described


def digest_of(index: Any) -> int | None:
    """The sum of each sample number's digest (the mixer of SplitMix64); None without numbers."""
    if isinstance(index, (list, tuple)):
        numbers = index
    else:
        numbers = [index]
    if not all(isinstance(number, int) or hasattr(number, "__index__") for number in numbers):
        return None
    return _sum_of([_mixed(int(number)) for number in numbers])


def _sum_of(digests: Sequence[int | None]) -> int | None:
    numbers = []
    for digest in digests:
        if digest is not None:
            numbers.append(digest)
    if len(numbers) == len(digests):
        return sum(numbers) % (1 << 64)
    return None


def _mixed(number: int) -> int:
    mask = (1 << 64) - 1
    number = (number + 1) * 0x9E3779B97F4A7C15 & mask
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & mask
    number = (number ^ number >> 27) * 0x94D049BB133111EB & mask
    return number ^ number >> 31
