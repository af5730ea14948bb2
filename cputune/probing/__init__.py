"""Look at a machine: ``cputune.probe()`` returns its ``HostFacts``."""

from __future__ import annotations

from cputune.probing._probe import probe

__all__ = ["probe"]
