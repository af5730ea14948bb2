"""What was asked of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """What was asked for, beside the workload and the machine.

    ``created`` is when (UTC). ``storage``, the address of a database, may hold a password.
    """

    budget: int = 20
    seed: int = 0
    knobs: tuple[str, ...] | None = None
    fix: Mapping[str, Any] = field(default_factory=dict)
    allow_slow_precision: bool = False
    max_time_seconds: float | None = None
    study: Path | None = None
    storage: str | None = field(default=None, repr=False)
    resume: bool = False
    created: str | None = None
    steps_planned: int | None = None
