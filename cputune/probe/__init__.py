"""Look at a machine: ``cputune.probe()`` returns its ``HostFacts``."""

from __future__ import annotations

from cputune._callable import make_callable
from cputune.probe._probe import probe

__all__ = ["probe"]

make_callable(__name__, probe)
