"""Makes a step draw the same random numbers for each of its samples.

A batch of eight and two of four draw other numbers, so their losses could not be compared. While
``Draws`` is on, what has a row per sample has the same numbers in each row, from its own generator.
Then a mean over samples is the mean of its parts, also with noise, timesteps or views. Permutations
of samples are left.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

# Any number.
SEED = 20_011

# Methods of a tensor that draw numbers alone.
_IN_PLACE = ("normal_", "uniform_", "exponential_", "log_normal_", "cauchy_", "geometric_")

# Functions of torch, and the method that draws what they draw.
_LIKE = {
    "rand": "uniform_",
    "rand_like": "uniform_",
    "randn": "normal_",
    "randn_like": "normal_",
}


class Draws:
    """Attributes:
    samples: of the batch that is trained on.
    drew: something was drawn while it was on.
    once: the last batch drew something without a row for each sample.
    in_updates: something was drawn between a gradient and its update.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.drew = False
        self.once = False
        self.in_updates = False
        self._after_gradient: object = None
        self._number = 0
        self._rows_seed = SEED
        self._first: int | None = None

    @contextlib.contextmanager
    def alike(
        self, samples: int, *, seed: int = SEED, rows: int = SEED, first: int | None = None
    ) -> Iterator[None]:
        """Within, a batch of this number of samples draws from the same state of every generator.

        ``rows`` seeds what has a row for each sample, ``seed`` all else. ``first``: each sample has
        its own draws, by its place from this one on; None: all have the same.
        """
        torch = sys.modules["torch"]
        before, kept = self.samples, _state()
        self.samples, self._number, self._rows_seed, self._first = samples, 0, rows, first
        _seed(seed)
        seeded = _comparable(_state())
        with contextlib.ExitStack() as put_back:
            for owner, name, called in self._set(torch):
                put_back.enter_context(_replaced(owner, name, called))
            try:
                yield
            finally:
                self.samples = before
                self.once = _comparable(_state()) != seeded
                self.drew = self.drew or self._number > 0 or self.once
                _put_back(kept)

    def after_gradient(self) -> None:
        """Note the state of all generators after a backward pass."""
        self._after_gradient = _comparable(_state())

    def after_update(self) -> None:
        """Note whether anything was drawn since."""
        if self._after_gradient is not None and not self.in_updates:
            self.in_updates = self._after_gradient != _comparable(_state())
        self._after_gradient = None

    def _set(self, torch: Any) -> Iterator[tuple[object, str, Callable[..., object]]]:
        for name in _IN_PLACE:
            yield torch.Tensor, name, functools.partial(self._in_place, name)
        for name, method in _LIKE.items():
            yield torch, name, functools.partial(self._made, method)
        for name in ("randint", "randint_like"):
            yield torch, name, self._whole_numbers
        yield torch, "normal", self._normal
        yield torch, "bernoulli", self._bernoulli
        yield torch.Tensor, "bernoulli", self._bernoulli
        yield torch.Tensor, "bernoulli_", self._bernoulli_in_place

    def _rows(self, shape: Any) -> int | None:
        """Rows for each sample; None if a tensor has none for each."""
        if not self.samples or not len(shape) or shape[0] % self.samples:
            return None
        return int(shape[0]) // self.samples

    def _drawn(self, like: Any, method: str, *args: object, **kwargs: object) -> Any:
        """Numbers in the shape of a tensor, whose first dimension is that of samples."""
        torch = sys.modules["torch"]
        each = self._rows(like.shape)
        assert each is not None, "it has rows for each sample"
        self._number += 1
        places = [0] if self._first is None else range(self._first, self._first + self.samples)
        parts = []
        for place in places:
            seed = self._rows_seed + self._number + 10_007 * place
            generator = torch.Generator().manual_seed(seed)
            part = torch.empty((each, *like.shape[1:]), dtype=like.dtype)
            getattr(torch._C.TensorBase, method)(part, *args, **{**kwargs, "generator": generator})
            parts.append(part)
        if self._first is None:
            return parts[0].repeat(self.samples, *[1] * (like.ndim - 1))
        return torch.cat(parts)

    def _in_place(self, method: str, original: Any, tensor: Any, *args: object, **kw: Any) -> Any:
        kw.pop("generator", None)
        if self._rows(tensor.shape) is None or tensor.requires_grad:
            return original(tensor, *args, **kw)
        return tensor.copy_(self._drawn(tensor, method, *args, **kw))

    def _made(self, method: str, original: Any, *args: object, **kwargs: object) -> Any:
        tensor = _undone(original, *args, **kwargs)
        if self._rows(tensor.shape) is None or not tensor.is_floating_point():
            return original(*args, **kwargs)
        return (
            tensor.detach().copy_(self._drawn(tensor, method)).requires_grad_(tensor.requires_grad)
        )

    def _whole_numbers(self, original: Any, *args: object, **kwargs: object) -> Any:
        tensor = _undone(original, *args, **kwargs)
        each = self._rows(tensor.shape)
        if each is None:
            return original(*args, **kwargs)
        numbers = []
        for arg in args:
            if isinstance(arg, int):
                numbers.append(arg)
        bounds = [kwargs.get("low", 0), kwargs.get("high", numbers[-1] if numbers else None)]
        if len(numbers) > 1:
            bounds[0] = numbers[0]
        if not all(isinstance(bound, int) for bound in bounds):
            return original(*args, **kwargs)
        return tensor.copy_(self._drawn(tensor, "random_", *bounds))

    def _normal(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = _undone(original, *args, **kwargs)
        if self._rows(tensor.shape) is None:
            return original(*args, **kwargs)
        mean = kwargs.get("mean", args[0] if args else 0.0)
        deviation = kwargs.get("std", args[1] if len(args) > 1 else 1.0)
        return tensor.copy_(mean + deviation * self._drawn(tensor, "normal_"))

    def _bernoulli(self, original: Any, tensor: Any, *args: object, **kwargs: object) -> Any:
        if args:
            share = args[0]
        else:
            share = kwargs.get("p", tensor)
        if self._rows(tensor.shape) is None or not tensor.is_floating_point():
            return original(tensor, *args, **kwargs)
        return (self._drawn(tensor.detach(), "uniform_") < share).to(tensor.dtype)

    def _bernoulli_in_place(
        self, original: Any, tensor: Any, p: Any = 0.5, **kwargs: object
    ) -> Any:
        if self._rows(tensor.shape) is None or tensor.requires_grad:
            return original(tensor, p, **kwargs)
        torch = sys.modules["torch"]
        share = torch.empty(tensor.shape, dtype=torch.float32)
        return tensor.copy_(self._drawn(share, "uniform_") < p)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, called: Callable[..., object]) -> Iterator[None]:
    """A function of torch replaced; what a class has from its base is taken out again."""
    original = getattr(owner, name)
    replaced = vars(owner).get(name)

    compiler = getattr(sys.modules["torch"], "compiler", None)
    is_compiling = getattr(compiler, "is_compiling", lambda: False)

    @functools.wraps(original)
    def drawing(*args: object, **kwargs: object) -> object:
        if is_compiling():  # what is compiled stays, and draws by itself
            return original(*args, **kwargs)
        return called(original, *args, **kwargs)

    setattr(owner, name, drawing)
    try:
        yield
    finally:
        if replaced is None:
            delattr(owner, name)
        else:
            setattr(owner, name, replaced)


def _undone(original: Any, *args: Any, **kwargs: Any) -> Any:
    """What a function of torch draws, with its generator restored."""
    torch, generator = sys.modules["torch"], kwargs.get("generator")
    if generator is None:
        before = torch.get_rng_state()
    else:
        before = generator.get_state()
    result = original(*args, **kwargs)
    if generator is None:
        torch.set_rng_state(before)
    else:
        generator.set_state(before)
    return result


def _seed(seed: int) -> None:
    random.seed(seed)
    sys.modules["torch"].default_generator.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def _state() -> tuple[Any, Any, Any]:
    numpy = sys.modules.get("numpy")
    state = None
    if numpy is not None:
        state = numpy.random.get_state()
    return random.getstate(), sys.modules["torch"].get_rng_state(), state


def _comparable(state: tuple[Any, Any, Any]) -> tuple[object, ...]:
    python, torch, numpy = state
    legacy = None
    if numpy is not None:
        legacy = (numpy[1].tobytes(), numpy[2])
    return python, torch.numpy().tobytes(), legacy


def _put_back(state: tuple[Any, Any, Any]) -> None:
    random.setstate(state[0])
    sys.modules["torch"].set_rng_state(state[1])
    if state[2] is not None:
        sys.modules["numpy"].random.set_state(state[2])
