"""What a plan sets in a script, as a record that fits into an argument."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True)
class Force:
    """What is set in the script's own objects.

    Attributes:
        world_size: ranks of the job; 0 leaves the script's objects as they are.
        arguments: fields of TrainingArguments, by their current names.
        samples_per_rank: samples of one rank per optimizer step; None divides the script's own
            batch over the ranks.
        batch_per_rank: the batch of every rank, whatever their number; None: see above.
        accumulation: batches of one step by the plan, or by the script's own loop; None if its
            framework knows, and they stay.
        torch: what is set for every framework: ``dropout``: ``bytes``; ``padding``: ``cut``, or
            ``ask`` if it is only checked; ``order``: ``length``; ``gradients``: ``sparse``;
            ``gradient_precision``: ``bf16``.
        typed_ranks: ranks of the current launch, on which its training depends.
        typed_accumulation: batches of one of its steps, if flags have changed them.
        by_flags: flags have set the arguments, and the batch of parsed ones.
        loader: which of the loaders that an Accelerator prepares is trained on, from 0.
        find_unused: whether the model has parameters that a step does not use.
        loop_alone: the script trains by a loop over an Accelerator, without a Trainer.
        without: modules of parts that changed nothing in trials, and are left out.
    """

    world_size: int = 0
    arguments: Mapping[str, object] = field(default_factory=dict)
    samples_per_rank: int | None = None
    batch_per_rank: int | None = None
    accumulation: int | None = None
    torch: Mapping[str, str] = field(default_factory=dict)
    typed_ranks: int = 1
    typed_accumulation: int | None = None
    by_flags: bool = False
    loader: int = 0
    find_unused: bool = False
    loop_alone: bool = False
    without: tuple[str, ...] = ()

    def changed(self) -> dict[str, object]:
        """The fields that differ from their defaults."""
        usual = Force()
        changed = {}
        for attribute in fields(self):
            value = getattr(self, attribute.name)
            if value != getattr(usual, attribute.name):
                changed[attribute.name] = value
        return changed

    def to_json(self) -> str:
        """PLAN, without default values."""
        return json.dumps(self.changed())

    @property
    def other_ranks(self) -> bool:
        """Whether the global batch stays, and is divided over another number of ranks."""
        return self.batch_per_rank is None and self.rescales

    @property
    def rescales(self) -> bool:
        """Whether the plan has another number of ranks than the current launch.

        Some losses grow with the ranks, whatever batch each of them takes.
        """
        return self.world_size != self.typed_ranks

    @property
    def precision(self) -> str:
        """The precision in accelerate's words."""
        return next((name for name in ("bf16", "fp16") if self.arguments.get(name)), "no")

    def batch(self, batch: int, accumulation: int) -> tuple[int, int]:
        """Batch and accumulation steps of one rank, from those of the script.

        The script's accumulation steps stay if they divide the rank's samples, else their greatest
        common divisor is used. Raises ValueError if the script's global batch cannot be divided
        over the ranks.
        """
        if self.batch_per_rank is not None:
            return self.batch_per_rank, accumulation
        samples = self.samples_per_rank
        if samples is None:
            global_batch = batch * accumulation * self.typed_ranks
            samples, rest = divmod(global_batch, self.world_size)
            if rest:
                raise ValueError(
                    f"a global batch of {global_batch} cannot be divided over "
                    f"{self.world_size} ranks"
                )
        accumulation = math.gcd(self.accumulation or accumulation, samples)
        return samples // accumulation, accumulation
