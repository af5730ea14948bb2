"""What a plan sets inside a script that knows nothing of plans."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from cputune.inside import FORCE_VARIABLE


@dataclass(frozen=True)
class Force:
    """The part of a plan that only the script's own objects can carry.

    Attributes:
        world_size: ranks of the job.
        precision: "fp32", "bf16" or "fp16", for an Accelerator.
        arguments: fields of TrainingArguments and their values, for a Trainer.
        samples_per_rank: samples of one rank per optimizer step; None keeps the
            script's own batch as the global batch, and divides it over the ranks.
        batch_per_rank: the batch of every rank whatever their number; None: see above.
        cpus: the CPUs of each local rank, where the launcher cannot bind them exactly.
    """

    world_size: int
    precision: str = "fp32"
    arguments: Mapping[str, bool | int | str | None] = field(default_factory=dict)
    samples_per_rank: int | None = None
    batch_per_rank: int | None = None
    cpus: tuple[tuple[int, ...], ...] | None = None

    def to_variable(self) -> str:
        """The value of CPUTUNE_TRIAL_FORCE."""
        return json.dumps(asdict(self))

    def batch(self, batch: int, accumulation: int) -> tuple[int, int]:
        """Batch and accumulation steps of one rank, from those of the script.

        The script's accumulation steps stay where they divide the rank's samples, else
        their greatest common divisor does. Raises ValueError where the script's global
        batch cannot be divided over the ranks.
        """
        if self.batch_per_rank is not None:
            return self.batch_per_rank, accumulation
        samples = self.samples_per_rank
        if samples is None:
            samples, rest = divmod(batch * accumulation, self.world_size)
            if rest:
                raise ValueError(
                    f"a global batch of {batch * accumulation} cannot be divided over "
                    f"{self.world_size} ranks"
                )
        accumulation = math.gcd(accumulation, samples)
        return samples // accumulation, accumulation


def from_environment() -> Force | None:
    """What this rank is told to set; None: nothing, the launch is run as found."""
    text = os.environ.get(FORCE_VARIABLE)
    return Force(**json.loads(text)) if text else None
