"""Where the time of a training step goes: a few steps under torch's profiler, sorted by kind.

Of each operation its own time counts, without that of the operations that it calls. An operation
has the kind of its caller if that has one (a matmul inside of attention is attention). The rest is
Python, and waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from cputune.inside import machine_limits
from cputune.inside.messages import Profiled

# Of steps that are profiled; of long ones fewer will do.
ENOUGH_SECONDS = 30.0

PRODUCTS, MASKS, ATTENTION, OPTIMIZER, COPIES, REDUCE, DATA, NORMS, LOSS, REST = (
    "matrix products",
    "dropout masks",
    "attention",
    "optimizer",
    "copies",
    "all-reduce",
    "waiting for data",
    "layer norms",
    "loss",
    "the rest",
)

# Beginnings of operations that give their kind to all that they call.
_CALLERS = (
    ("enumerate(DataLoader)", DATA),
    ("Optimizer.", OPTIMIZER),
    ("aten::bernoulli", MASKS),
    ("aten::native_dropout", MASKS),
    ("aten::scaled_dot_product", ATTENTION),
    ("aten::_scaled_dot_product", ATTENTION),
    ("DroppedAttention", ATTENTION),  # inside.applying.attention, with its masks
    ("aten::embedding", "embeddings"),  # its gradient has the same size, filled with zeros
    ("aten::convolution", "convolutions"),
    ("aten::native_layer_norm", NORMS),
    ("aten::_fused_rms_norm", NORMS),
    *((f"aten::{name}", "activations") for name in ("gelu", "silu", "relu", "tanh", "threshold")),
    *((f"aten::{name}", LOSS) for name in ("cross_entropy", "nll_loss", "log_softmax")),
    *((f"aten::_{name}", LOSS) for name in ("log_softmax", "cross_entropy")),
)

_OWN: dict[str, tuple[str, ...]] = {
    PRODUCTS: ("aten::mm", "aten::addmm", "aten::linear", "aten::mkldnn_linear"),
    # Eager attention is these; nothing else of a transformer is.
    ATTENTION: ("aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::_softmax_backward_data"),
    "norms of gradients": ("aten::linalg_vector_norm", "aten::_foreach_norm", "aten::norm"),
    "sums and factors": (
        "aten::add",
        "aten::add_",
        "aten::mul",
        "aten::mul_",
        "aten::div",
        "aten::div_",
        "aten::sub",
        "aten::sum",
        "aten::mean",
        "aten::pow",
        "aten::rsqrt",
        "aten::neg",
    ),
    COPIES: ("aten::copy_", "aten::clone", "aten::_to_copy", "aten::contiguous", "aten::cat"),
}
_KIND = {name: kind for kind, names in _OWN.items() for name in names}
_COLLECTIVES = ("gloo:", "c10d::", "nccl:")

Span = tuple[float, float]


class StepProfiler:
    """Profiles some steps of this rank, and then measures the limit of its cores.

    The first is the one after step ``settled``.
    """

    def __init__(self, steps: int, *, settled: int) -> None:
        self._steps = steps
        self._settled = settled
        self._profile: Any = None
        self._first = 0
        self._since = time.perf_counter()
        self._reached: list[float] = []

    def after(self, step: int, torch: Any, dtype: str | None) -> Profiled | None:
        """A step is over; returns what was seen after the last of them.

        All ranks are here at the same step, so that their limits are those of cores that are all
        busy. They are measured before and after the steps, because a shared machine may reach half
        of it at one moment; and what the matmuls of the steps reach, the cores can.
        """
        seconds = time.perf_counter() - self._since
        long = seconds > ENOUGH_SECONDS
        if self._first == 0 and (step == self._settled or long):
            self._reach(torch, dtype)
            self._profile = torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU],
                record_shapes=True,
                with_flops=True,
            )
            self._profile.start()
            self._first, self._since = step, time.perf_counter()
            return None
        steps = step - self._first
        if self._profile is None or not (steps == self._steps or long):
            return None
        self._profile.stop()
        events = list(self._profile.events())
        self._profile = None
        gflops, shares_of_kinds = gflops_of(events, seconds), shares(events, seconds)
        self._reach(torch, dtype)
        if self._reached and product_share(shares_of_kinds) and gflops is not None:
            self._reached.append(gflops / product_share(shares_of_kinds))
        return {
            "event": "profile",
            "steps": steps,
            "seconds": seconds,
            "shares": shares_of_kinds,
            "reduce_seconds": in_flight(events) / 1e6,
            "gflops": gflops,
            "limit_gflops": max(self._reached, default=None),
            "dtype": dtype,
        }

    def _reach(self, torch: object, dtype: str | None) -> None:
        if dtype is not None:
            self._reached.append(machine_limits.gflops(torch, dtype))


def gflops_of(events: Iterable[Any], seconds: float) -> float | None:
    """GFLOP/s of matmuls, over the whole time; None if some are not counted."""
    if any(map(_is_of_ipex, events)):
        return None
    return sum(event.flops or 0 for event in events if event.name in _PRODUCTS) / seconds / 1e9


_IPEX = "torch_ipex::"
# How operations of IPEX begin, and parts of the names of its matmuls.
_IPEX_PRODUCTS = ("linear", "sgemm", "matmul")


def _is_of_ipex(event: Any) -> bool:
    """A matmul of IPEX, of which the profiler counts no operations."""
    name = event.name.lower()
    return name.startswith(_IPEX) and any(word in name for word in _IPEX_PRODUCTS)


_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


def product_share(shares: dict[str, float]) -> float:
    """The share of the time in which matmuls run; attention's are among its own."""
    return shares.get(PRODUCTS, 0.0) + shares.get(ATTENTION, 0.0)


def shares(events: Iterable[Any], seconds: float) -> dict[str, float]:
    """The share of each kind in these seconds, the largest first, the rest last."""
    collectives, outermost = list[Any](), list[Any]()
    taken: dict[str, float] = {}
    for event in events:
        if event.time_range is None:
            continue
        if event.name.startswith(_COLLECTIVES):
            collectives.append(event)
            continue
        if event.cpu_parent is None:
            outermost.append(event)
        kind = kind_of(event)
        if kind is not None:
            taken[kind] = taken.get(kind, 0.0) + event.self_cpu_time_total / 1e6
    waited = _uncovered(_spans(collectives), _spans(outermost))
    if waited:
        taken[REDUCE] = waited / 1e6
    by_kind = {kind: min(1.0, spent / seconds) for kind, spent in taken.items()}
    by_kind = dict(sorted(by_kind.items(), key=lambda item: -item[1]))
    return {**by_kind, REST: max(0.0, 1.0 - sum(by_kind.values()))}


def in_flight(events: Iterable[Any]) -> float:
    """Microseconds in which this rank's gradients are on their way, and others' are waited for."""
    collectives = []
    for event in events:
        if event.time_range is not None and event.name.startswith(_COLLECTIVES):
            collectives.append(event)
    return sum(end - start for start, end in _spans(collectives))


def kind_of(event: Any) -> str | None:
    """The kind of an operation: that of its caller, else its own; None for neither."""
    caller = event
    while caller is not None:
        for name, kind in _CALLERS:
            if caller.name.startswith(name):
                return kind
        caller = caller.cpu_parent
    own_kind: str | None = PRODUCTS if _is_of_ipex(event) else _KIND.get(event.name)
    return own_kind


def _spans(events: Iterable[Any]) -> list[Span]:
    """Beginnings and ends in microseconds; spans that overlap are joined."""
    joined: list[Span] = []
    for start, end in sorted((e.time_range.start, e.time_range.end) for e in events):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _uncovered(spans: list[Span], by: list[Span]) -> float:
    """How much of the spans the others leave free: communication without computation."""
    return sum(end - start for start, end in spans) - sum(_overlaps(spans, by))


def _overlaps(spans: list[Span], others: list[Span]) -> Iterator[float]:
    position = 0
    for start, end in spans:
        while position < len(others) and others[position][1] <= start:
            position += 1
        for first, last in others[position:]:
            if first >= end:
                break
            yield max(0.0, min(end, last) - max(start, first))
