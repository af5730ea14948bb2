"""Releases whose optimizers can step on a CPU."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

_FUSED_ON_CPU = Version("2.4")
"""The first torch with a fused AdamW for CPUs."""

_BITSANDBYTES_ON_CPU = Version("0.50")
"""The first bitsandbytes whose optimizers step on a CPU."""


def fuses_on_cpu(torch: Version) -> bool:
    """Whether ``adamw_torch_fused`` of this torch steps on a CPU."""
    return torch >= _FUSED_ON_CPU


def bitsandbytes_steps_on_cpu(version: str | None) -> bool | None:
    """None for an unknown version."""
    try:
        return Version(version or "") >= _BITSANDBYTES_ON_CPU
    except InvalidVersion:
        return None
