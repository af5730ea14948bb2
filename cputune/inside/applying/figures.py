"""Reduces what a rank trains to a few numbers, and compares them with those of another rank.

Of each trained parameter these are its norm and four projections, weighted sums of its numbers with
signs that are the same in every rank. The differences of the projections estimate how far two
weights are apart (Johnson and Lindenstrauss 1984; signs: Achlioptas 2003, "Database-friendly random
projections").

Buffers (batch statistics), weights that no optimizer trains (an average of the weights on one
rank), and sharded parameters are not compared.
"""

from __future__ import annotations

import functools
import gc
import math
import sys
import zlib
from collections.abc import Sequence
from typing import Any

# The difference of a parameter, relative to its norm, from which ranks differ. Ranks that add
# the same gradients differ by rounding: at most 1e-7 in a step, and only on unlike processors.
LEAST_APART = 1e-3

# The same for learning rates, which are computed in fp64 from the same numbers.
SAME_RATE = 1e-6

# Larger parameters are first projected by rows.
FLAT = 1 << 16

PROJECTIONS = 4  # random directions of the weights of a parameter

# What a rank trains, as JSON: ``step``, ``rates`` by group of parameters, ``shapes`` (their
# digest), ``weights`` (of each parameter its norm and its projections), and ``samples``, if they
# were counted.
Figures = dict[str, Any]


class Trained:
    """What the optimizers of this rank train, of those that have stepped since ``forget``."""

    def __init__(self) -> None:
        self._optimizers: list[Any] = []
        self._named: dict[tuple[int, ...], list[str]] = {}

    def saw(self, optimizer: Any) -> None:
        """Note an optimizer that steps."""
        if not any(noted is optimizer for noted in self._optimizers):
            self._optimizers.append(optimizer)

    def forget(self) -> None:
        """Forget the optimizers; a script may make others for its next fold."""
        self._optimizers.clear()

    def parameters(self) -> list[Any]:
        """The parameters that are compared, each once."""
        by_id: dict[int, Any] = {}
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad and is_whole(parameter):
                        by_id[id(parameter)] = parameter
        return list(by_id.values())

    def figures(self, step: int, *, weights: bool = True) -> Figures:
        """All figures after a step; ``weights``: those of the parameters too."""
        torch = sys.modules["torch"]
        parameters = self.parameters() if weights else []
        rates = []
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                if "lr" in group:
                    rates.append(float(group["lr"]))
        shapes = [tuple(parameter.shape) for parameter in parameters]
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            rows = [_projected(torch, parameter.detach()) for parameter in parameters]
            numbers = torch.stack(rows).tolist() if rows else []
        return {
            "step": step,
            "rates": rates,
            "shapes": zlib.crc32(repr(shapes).encode()),
            "weights": [[float(f"{number:.8g}") for number in row] for row in numbers],
        }

    def names(self) -> list[str]:
        """The names of the parameters in their models, or their shapes."""
        parameters = self.parameters()
        key = tuple(map(id, parameters))
        if key in self._named:
            return self._named[key]
        names = {id(parameter): "" for parameter in parameters}
        module_class = sys.modules["torch.nn"].Module
        for thing in gc.get_objects():
            if not issubclass(type(thing), module_class):
                continue
            for name, parameter in thing.named_parameters():
                if len(name) > len(names.get(id(parameter), name)):
                    names[id(parameter)] = name
        listed = []
        for number, parameter in enumerate(parameters):
            shape = " x ".join(map(str, parameter.shape))
            name = names[id(parameter)].replace("_orig_mod.", "")
            while name.startswith("module."):
                name = name[len("module.") :]
            listed.append(name or f"parameter {number} ({shape})")
        self._named = {key: listed}
        return listed


def first_number(optimizer: Any) -> float:
    """One number of what an optimizer trains: it changes if weights are replaced."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if is_whole(parameter) and parameter.numel():
                return float(parameter.detach().reshape(-1)[0])
    return 0.0


def rows_of(given: Any) -> int | None:
    """The samples in the arguments of a model: the rows of the first tensor that has any."""
    if hasattr(given, "shape"):
        return int(given.shape[0]) if len(given.shape) else None
    if hasattr(given, "values"):
        given = given.values()
    elif not isinstance(given, (list, tuple)):
        return None
    return next((count for count in map(rows_of, given) if count is not None), None)


def is_whole(parameter: Any) -> bool:
    """Whether each rank has all of a parameter, on the CPU: it is not a shard of FSDP."""
    shard = hasattr(parameter, "placements") or type(parameter).__name__ == "FlatParameter"
    return bool(not shard and parameter.is_floating_point() and parameter.device.type == "cpu")


def _projected(torch: Any, weight: Any) -> Any:
    """The norm of a parameter and its projections, in fp32."""
    weight = weight.float()
    count = weight.numel()
    if count > FLAT and weight.dim() > 1:
        weight = _as_matrix(weight)
        weight = weight @ _signs(weight.shape[1], 1)[:, 0]
    flat = weight.reshape(-1)
    if not flat.numel():
        return torch.zeros(1 + PROJECTIONS)
    return torch.cat([flat.norm()[None], flat @ _signs(flat.numel(), PROJECTIONS)])


def _as_matrix(weight: Any) -> Any:
    """The way to fold a tensor into rows that is nearer to a square."""
    first = weight.reshape(weight.shape[0], -1)
    last = weight.reshape(-1, weight.shape[-1])
    return max(first, last, key=lambda matrix: min(matrix.shape))


@functools.lru_cache(maxsize=256)
def _signs(rows: int, columns: int) -> Any:
    """Random signs, the same in every rank, without torch's own generator."""
    torch = sys.modules["torch"]
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(0, 2, (rows, columns), generator=generator).float() * 2 - 1


def how_apart(mine: Figures, other: Figures) -> tuple[str, int | None, str] | None:
    """How the figures of a rank and of another one, which is named first, differ; None: they do
    not.

    What differs ("weights", "rates" or "samples"); of weights the place of the parameter that
    differs most; and how. Parameters of unlike shapes are not compared.
    """
    pairs = list(zip(mine["rates"], other["rates"]))  # noqa: B905 (Python 3.9)
    for my_rate, their_rate in pairs:
        if not math.isclose(my_rate, their_rate, rel_tol=SAME_RATE, abs_tol=1e-12):
            return "rates", None, f"{their_rate:.6g} and {my_rate:.6g}"
    difference = None
    if mine["shapes"] == other["shapes"]:
        difference = _weights_apart(mine["weights"], other["weights"])
    if difference is None and mine.get("samples") != other.get("samples"):
        return "samples", None, f"{other.get('samples')} and {mine.get('samples')}"
    return difference


def _weights_apart(
    mine: Sequence[Sequence[float]], other: Sequence[Sequence[float]]
) -> tuple[str, int | None, str] | None:
    distances = [_distance(a, b) for a, b in zip(mine, other)]  # noqa: B905
    apart = [distance for distance in distances if distance > LEAST_APART]
    if not apart:
        return None
    worst = max(distances)
    more = ""
    if len(apart) > 1:
        more = f", and {len(apart) - 1} more of {len(distances)} parameters differ"
    by = "one of them is not a number" if worst == math.inf else f"by {worst:.2g} of its norm"
    return "weights", distances.index(worst), by + more


def _distance(mine: Sequence[float], other: Sequence[float]) -> float:
    """How far two parameters are apart, relative to the norm of the larger one."""
    numbers = [math.isnan(number) for number in (mine[0], other[0])]
    if any(numbers):
        return 0.0 if all(numbers) else math.inf
    if list(mine) == list(other):
        return 0.0
    scale = max(mine[0], other[0])
    squares = [(a - b) ** 2 for a, b in zip(mine[1:], other[1:])]  # noqa: B905
    distance = math.sqrt(sum(squares) / len(squares))
    return distance / scale if scale else 0.0


def described(difference: tuple[str, int | None, str], names: Sequence[str], ranks: str) -> str:
    """A difference of ``ranks`` ("rank 0 and rank 1") in words."""
    what, place, how = difference
    if place is None:
        counted = "learning rates" if what == "rates" else "numbers of samples"
        return f"the {counted} of {ranks} differ: {how}"
    name = names[place] if place < len(names) else f"parameter {place}"
    return f"the {what} of {ranks} differ, most of all {name}, {how}"
