"""Where the time of a training step goes: a few steps under torch's profiler, sorted by kind.

Of each operation its own time counts, without that of the operations that it calls, so nothing is
counted twice. An operation belongs to the kind of its caller if that has one (a product inside of
attention is attention). What no operation covers is the rest: Python, and waiting.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from typing import Any

from cputune.inside.messages import Profiled

ENOUGH_SECONDS = 30.0
"""Of steps that are profiled: where they are long, fewer will do."""

PRODUCTS, MASKS, ATTENTION, OPTIMIZER, COPIES, REDUCE, DATA, NORMS, LOSS, REST = (
    "matrix products", "dropout masks", "attention", "optimizer", "copies", "all-reduce",
    "waiting for data", "layer norms", "loss", "the rest",
)  # fmt: skip

_CALLERS = (
    ("enumerate(DataLoader)", DATA),
    ("Optimizer.", OPTIMIZER),
    ("aten::bernoulli", MASKS),
    ("aten::native_dropout", MASKS),
    ("aten::scaled_dot_product", ATTENTION),
    ("aten::_scaled_dot_product", ATTENTION),
    ("aten::embedding", "embeddings"),  # its gradient has the same size, filled with zeros
    ("aten::convolution", "convolutions"),
    ("aten::native_layer_norm", NORMS),
    ("aten::_fused_rms_norm", NORMS),
    *((f"aten::{name}", "activations") for name in ("gelu", "silu", "relu", "tanh", "threshold")),
    *((f"aten::{name}", LOSS) for name in ("cross_entropy", "nll_loss", "log_softmax")),
    *((f"aten::_{name}", LOSS) for name in ("log_softmax", "cross_entropy")),
)
"""How operations begin that give their kind to all that they call, the first that fits."""

_OWN: dict[str, tuple[str, ...]] = {
    PRODUCTS: ("aten::mm", "aten::addmm", "aten::linear", "aten::mkldnn_linear"),
    # Eager attention is these; nothing else of a transformer is.
    ATTENTION: ("aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::_softmax_backward_data"),
    "norms of gradients": ("aten::linalg_vector_norm", "aten::_foreach_norm", "aten::norm"),
    "sums and factors": (
        "aten::add", "aten::add_", "aten::mul", "aten::mul_", "aten::div", "aten::div_",
        "aten::sub", "aten::sum", "aten::mean", "aten::pow", "aten::rsqrt", "aten::neg",
    ),
    COPIES: ("aten::copy_", "aten::clone", "aten::_to_copy", "aten::contiguous", "aten::cat"),
}  # fmt: skip
_KIND = {name: kind for kind, names in _OWN.items() for name in names}
_COLLECTIVES = ("gloo:", "c10d::", "nccl:")
_OF_IPEX = re.compile(r"torch_ipex::.*(linear|sgemm|matmul)")


class StepProfiler:
    """Profiles so many steps of this rank; the first is the one after step ``settled``."""

    def __init__(self, steps: int, *, settled: int) -> None:
        self._steps = steps
        self._settled = settled
        self._profile: Any = None
        self._first = 0
        self._since = time.perf_counter()

    def after(self, step: int, torch: Any) -> Profiled | None:
        """A step is over; what was seen, once it is the last of them."""
        seconds = time.perf_counter() - self._since
        long = seconds > ENOUGH_SECONDS
        if self._first == 0 and (step == self._settled or long):
            cpu = torch.profiler.ProfilerActivity.CPU
            self._profile = torch.profiler.profile(activities=[cpu])
            self._profile.start()
            self._first, self._since = step, time.perf_counter()
            return None
        steps = step - self._first
        if self._profile is None or not (steps == self._steps or long):
            return None
        self._profile.stop()
        found = shares(self._profile.events(), seconds)
        self._profile = None
        return {"event": "profile", "steps": steps, "seconds": seconds, "shares": found}


def shares(events: Iterable[Any], seconds: float) -> dict[str, float]:
    """The share of each kind in so many seconds, the largest first, the rest last."""
    events = [event for event in events if event.time_range is not None]
    talk = [event for event in events if event.name.startswith(_COLLECTIVES)]
    work = [event for event in events if not event.name.startswith(_COLLECTIVES)]
    taken: dict[str, float] = {}
    for event in work:
        if (kind := kind_of(event)) is not None:
            taken[kind] = taken.get(kind, 0.0) + event.self_cpu_time_total
    outermost = [event for event in work if event.cpu_parent is None]
    # Communication counts as far as nothing computes beside it.
    if waited := _covered([*talk, *outermost]) - _covered(outermost):
        taken[REDUCE] = waited
    found = {kind: min(1.0, one / 1e6 / seconds) for kind, one in taken.items()}
    found = dict(sorted(found.items(), key=lambda item: -item[1]))
    return {**found, REST: max(0.0, 1.0 - sum(found.values()))}


def kind_of(event: Any) -> str | None:
    """The kind of an operation: that of what called it, else its own; None for neither."""
    caller = event
    while caller is not None:
        for name, kind in _CALLERS:
            if caller.name.startswith(name):
                return kind
        caller = caller.cpu_parent
    if _OF_IPEX.match(event.name):
        return PRODUCTS
    return _KIND.get(event.name)


def _covered(events: Iterable[Any]) -> float:
    """Microseconds in which any of these runs."""
    covered, until = 0.0, -math.inf
    for start, end in sorted((one.time_range.start, one.time_range.end) for one in events):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
