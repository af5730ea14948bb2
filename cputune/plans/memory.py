"""How much memory training needs at least: one lower bound for the doctor and the tuner.

What it accepts may still run out of memory. BERT base in bf16, batch 12 of 384 tokens, counts as
3.0 GiB and peaked at 7.6 GiB with torch 2.13 (attention matrices, dropout masks and fp32 copies
come on top).
"""

from __future__ import annotations

from cputune.host.facts import HostFacts
from cputune.plans.workload import Workload

SPARE = 0.8
"""Share of the memory that was free before the study."""

PROCESS_BYTES = 256 << 20
"""Private memory of a process that imported torch and transformers' Trainer: 295 MiB with torch
2.13. All ranks share 120 MiB more, the files of libraries."""

VALUES_PER_PARAMETER = 4
"""The weight, its gradient and the two moments of AdamW, all of the weight's type
(Rajbhandari et al. 2020, "ZeRO", section 3.1)."""


def needed_bytes(workload: Workload, ranks: int = 1, *, nodes: int = 1) -> int:
    """Least memory of the ``ranks`` of each node: their processes, and for a recipe with known
    parameters weights, gradients, moments and samples.
    """
    state, kept, recipe = 0, 0, workload.recipe
    if recipe is not None and recipe.parameters is not None:
        batch = workload.global_batch_size or ranks * nodes
        per_rank = workload.batch_per_rank
        if per_rank is None:
            samples = -(-batch // nodes)
        else:
            samples = per_rank * ranks
        kept = samples * recipe.sample_bytes
        dtype = recipe.model.get("dtype") or recipe.model.get("torch_dtype")
        value_bytes = 4
        if dtype in ("bfloat16", "float16"):
            value_bytes = 2
        values = 1 if recipe.lora else VALUES_PER_PARAMETER  # frozen weights have no gradient
        state = values * value_bytes * recipe.parameters
    return ranks * (PROCESS_BYTES + state) + kept


def room_bytes(facts: HostFacts) -> int | None:
    """The cgroup's limit or the machine's memory, the smaller."""
    sizes = (facts.limits.memory_bytes, facts.memory.total_bytes)
    return min((size for size in sizes if size is not None and size > 0), default=None)


def spare_bytes(facts: HostFacts) -> float | None:
    """The free memory that a study may use; None if it is not known."""
    free = []
    for size in (facts.memory.available_bytes, room_bytes(facts)):
        if size:
            free.append(size)
    if free:
        return SPARE * min(free)
    return None
