"""The values that knobs have in a plan: plans and knobs both know them, and neither is imported."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

KnobValue: TypeAlias = int | str | bool

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

Backend = Literal["gloo", "ccl", "mpi"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)

Allocator = Literal["default", "tcmalloc", "jemalloc"]
ALLOCATORS: tuple[Allocator, ...] = get_args(Allocator)

OpenMP = Literal["default", "libgomp", "libiomp5"]
OPENMP_RUNTIMES: tuple[OpenMP, ...] = get_args(OpenMP)


def as_text(value: KnobValue) -> str:
    """A value as people type it."""
    if isinstance(value, bool):
        if value:
            return "yes"
        return "no"
    return str(value)
