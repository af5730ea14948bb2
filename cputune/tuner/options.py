"""What was asked of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cputune.facts import HostFacts
from cputune.result import host_fingerprint
from cputune.tuner.ledger import Identity
from cputune.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """What was asked for, beside the workload and the machine; ``created`` is when (UTC)."""

    budget: int = 20
    seed: int = 0
    knobs: tuple[str, ...] | None = None
    fix: Mapping[str, Any] = field(default_factory=dict)
    allow_slow_precision: bool = False
    max_time_seconds: float | None = None
    study: Path | None = None
    resume: bool = False
    created: str | None = None
    steps_planned: int | None = None

    def identity(self, facts: HostFacts, workload: Workload, hosts: Sequence[str] = ()) -> Identity:
        """What must be the same for the study to be gone on with."""
        return {
            "host": host_fingerprint(facts),
            "hosts": list(hosts) or None,
            "workload": workload.to_json(),
            "seed": self.seed,
            "knobs": None if self.knobs is None else sorted(self.knobs),
            "fix": {name: str(value) for name, value in sorted(self.fix.items())},
            "allow_slow_precision": self.allow_slow_precision,
            "steps_planned": self.steps_planned,
        }
