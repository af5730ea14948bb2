"""Restores what a check of the model has changed: buffers, queues, counters, random numbers."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

# Of all that is examined; what is longer is data.
MOST_ITEMS = 100_000

# Of tensors that are kept: those of a queue, not the frozen weights of a large model.
MOST_BYTES = 1 << 30

# In the path of a module that is not part of the script.
LIBRARIES = ("site-packages", "dist-packages", "lib/python")


@contextlib.contextmanager
def as_before(*objects: object) -> Iterator[None]:
    """Restore what changes meanwhile in these objects, in the script, and in what they have.

    Random generators, tensors without a gradient, lists, mappings, attributes and variables are
    restored. Weights are not: the caller updates none. Of objects of libraries only modules of
    torch are examined, of data nothing.
    """
    kept = _Before()
    for value in objects:
        kept.look_into(value)
    kept.look_into(sys.modules["__main__"])
    try:
        yield
    finally:
        for put_back in kept.put_back:
            put_back()


class _Before:
    """How to restore all that was examined; ``put_back``: what to call, each for one thing."""

    def __init__(self) -> None:
        self.put_back: list[Callable[[], object]] = []
        self._torch, self._bytes = sys.modules["torch"], 0
        self._seen: dict[int, object] = {}
        self._keep_random_state()

    def look_into(self, value: Any) -> None:
        """Keep the attributes of an object, whatever it is, and what they hold."""
        is_plain = isinstance(value, FunctionType) or not hasattr(value, "__dict__")
        if self._torch.is_tensor(value) or is_plain:
            self._look(value)
            return
        self._look(vars(value))
        for base in type(value).__mro__:
            if of_script(base.__module__) and id(base) not in self._seen:
                self._seen[id(base)] = base
                self._keep_class(base)
                self._look(vars(sys.modules[base.__module__]))

    def _look(self, value: Any) -> None:
        if value is None or isinstance(value, (bool, int, float, str)) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        kind = type(value)
        if self._torch.is_tensor(value):
            self._keep_tensor(value)
        elif kind in (dict, OrderedDict, defaultdict, list, deque, set):
            self._keep_container(value)
        elif kind is FunctionType:
            self._keep_variables(value)
        elif kind in (random.Random, self._torch.Generator) or kind.__module__.startswith("numpy"):
            self._keep_generator(value)
        elif isinstance(value, tuple):
            for held in value:
                self._look(held)
        elif isinstance(value, self._torch.nn.Module) or of_script(kind.__module__):
            self.look_into(value)

    def _keep_container(self, container: Any) -> None:
        if len(self._seen) + len(container) > MOST_ITEMS:
            return
        before = container.copy()
        if isinstance(container, dict):
            self.put_back.append(functools.partial(_put_back_mapping, container, before))
        elif isinstance(container, set):
            self.put_back.append(lambda: container.symmetric_difference_update(container ^ before))
        else:
            self.put_back.append(functools.partial(_put_back_sequence, container, before))
        for held in before.values() if isinstance(container, dict) else before:
            self._look(held)

    def _keep_tensor(self, tensor: Any) -> None:
        size = tensor.numel() * tensor.element_size()
        if tensor.requires_grad or tensor.is_inference() or self._bytes + size > MOST_BYTES:
            return
        self._bytes += size
        before = tensor.clone()

        def put_back() -> None:
            # Of running statistics torch's batch norm counts no version.
            if not self._torch.equal(tensor, before):
                with self._torch.no_grad():
                    tensor.resize_(before.shape).copy_(before)

        self.put_back.append(put_back)

    def _keep_variables(self, function: FunctionType) -> None:
        """Those of the function around it, which it may change (``nonlocal``)."""
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # of one that has no value yet
                self._keep_attribute(cell, "cell_contents", cell.cell_contents)

    def _keep_class(self, cls: type) -> None:
        for name, value in [*vars(cls).items()]:
            if not (name.startswith("__") or callable(value) or hasattr(value, "__get__")):
                self._keep_attribute(cls, name, value)

    def _keep_attribute(self, owner: object, name: str, value: object) -> None:
        self.put_back.append(functools.partial(setattr, owner, name, value))
        self._look(value)

    def _keep_generator(self, generator: Any) -> None:
        """A generator of Python, torch or numpy that the script has made."""
        if isinstance(generator, random.Random):
            self.put_back.append(functools.partial(generator.setstate, generator.getstate()))
        elif hasattr(generator, "set_state"):  # of torch, and numpy's RandomState
            self.put_back.append(functools.partial(generator.set_state, generator.get_state()))
        elif hasattr(generator, "bit_generator"):  # numpy's Generator
            bits = generator.bit_generator
            self.put_back.append(functools.partial(setattr, bits, "state", bits.state))

    def _keep_random_state(self) -> None:
        torch_random = self._torch.random
        self.put_back.append(functools.partial(random.setstate, random.getstate()))
        self.put_back.append(
            functools.partial(torch_random.set_rng_state, torch_random.get_rng_state())
        )
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            self.put_back.append(
                functools.partial(numpy.random.set_state, numpy.random.get_state())
            )


def _put_back_mapping(mapping: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Never empty in between: it may have the variables of a module, and threads run."""
    for name in [name for name in mapping if name not in before]:
        del mapping[name]
    mapping.update(before)


def _put_back_sequence(sequence: Any, before: Any) -> None:
    if [*map(id, sequence)] != [*map(id, before)]:
        sequence.clear()
        sequence.extend(before)


def of_script(module: str) -> bool:
    """Whether a module is the script, or one next to it."""
    if module == "__main__":
        return True
    if module.startswith("cputune."):
        return False
    path = getattr(sys.modules.get(module), "__file__", None)
    return path is not None and not any(part in path for part in LIBRARIES)
