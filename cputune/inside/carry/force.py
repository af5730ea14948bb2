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
        arguments: fields of TrainingArguments, by their names in today's transformers.
        samples_per_rank: samples of one rank per optimizer step; None takes the script's
            own batch for the global batch, and divides it over the ranks.
        batch_per_rank: the batch of every rank whatever their number; None: see above.
        accumulation: batches of one step that the plan says, or that a loop of the script's
            own takes; None where its framework knows, and they stay.
        torch: what is set whatever trains: ``dropout``: ``bytes``; ``padding``: ``cut``, or ``ask``
            where it is only found out whether it may be; ``order``: ``length``;
            ``gradients``: ``sparse``; ``gradient_precision``: ``bf16``.
        typed_ranks: ranks of the launch as it was typed; what it trains hangs on them.
        typed_accumulation: batches of one of its steps, where flags have changed them.
        by_flags: flags have set the arguments, and the batch of those that are parsed.
        loader: which of the loaders that an Accelerator prepares is trained on, from 0.
        find_unused: whether the model has parameters that a step does not use.
        loop_alone: the script was seen to train by a loop over an Accelerator, without a Trainer.
        without: modules of parts that were seen to change nothing, and are left out.
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

    def to_json(self) -> str:
        """PLAN; what is as by default is left out."""
        usual = Force()
        said = ((field.name, getattr(self, field.name)) for field in fields(self))
        return json.dumps({name: v for name, v in said if v != getattr(usual, name)})

    @property
    def other_ranks(self) -> bool:
        """Whether the plan has another number of ranks than the launch as typed."""
        return self.batch_per_rank is None and self.world_size != self.typed_ranks

    @property
    def precision(self) -> str:
        """In the words of accelerate."""
        return next((name for name in ("bf16", "fp16") if self.arguments.get(name)), "no")

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
            whole = batch * accumulation * self.typed_ranks
            samples, rest = divmod(whole, self.world_size)
            if rest:
                raise ValueError(
                    f"a global batch of {whole} cannot be divided over {self.world_size} ranks"
                )
        accumulation = math.gcd(self.accumulation or accumulation, samples)
        return samples // accumulation, accumulation
