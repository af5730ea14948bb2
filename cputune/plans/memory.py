"""How much memory training needs at least: one lower bound for the doctor and the tuner.

What it accepts may still run out of memory: dropout masks, temporary copies and the allocator come
on top. BERT base in fp32, batch 12 of 384 tokens, counts as 6.0 GiB and takes 8.7 GiB (torch 2.13,
from the peaks with one and with three samples).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.host.facts import HostFacts
from cputune.plans.knobs.precision import native_precisions

if TYPE_CHECKING:
    from cputune.plans.workload import Recipe, Workload

# Share of the memory that was free before the study.
SPARE = 0.8

# Private memory of a process that imported torch and transformers' Trainer: 295 MiB with torch
# 2.13. All ranks share 120 MiB more, the files of libraries.
PROCESS_BYTES = 256 << 20

# The weight, its gradient and the two moments of AdamW, all of the weight's type
# (Rajbhandari et al. 2020, "ZeRO", section 3.1).
VALUES_PER_PARAMETER = 4

# Bytes of each logit of a language model while its loss goes backward: the logarithm of its
# probability and its gradient. Both are fp32 also if the matmuls are in bf16: autocast computes
# cross-entropy in fp32 (torch 2.13), and transformers casts the logits before (5.23,
# loss/loss_utils.py).
LOGIT_BYTES = 8

# Bytes of a value in bf16 and fp16, and in fp32.
HALF, SINGLE = 2, 4


def least_value_bytes(facts: HostFacts) -> int:
    """Least bytes of a value that the backward pass keeps: 4 on a CPU without bf16."""
    if "bf16" in native_precisions(facts):
        return HALF
    return SINGLE


def needed_bytes(
    workload: Workload, ranks: int = 1, *, nodes: int = 1, value_bytes: int = HALF
) -> int:
    """Least memory of the ``ranks`` of each node: their processes, and for a recipe with known
    parameters weights, gradients, moments and samples. ``value_bytes``: of what is kept of a
    sample, 4 if no plan trains in bf16 or fp16.
    """
    state, kept, recipe = 0, 0, workload.recipe
    if recipe is not None and recipe.parameters is not None:
        batch = workload.global_batch_size or ranks * nodes
        per_rank = workload.batch_per_rank
        if per_rank is None:
            samples = -(-batch // nodes)
        else:
            samples = per_rank * ranks
        dtype = recipe.model.get("dtype") or recipe.model.get("torch_dtype")
        weight_bytes = SINGLE
        if dtype in ("bfloat16", "float16"):  # so are the values of its layers
            weight_bytes = value_bytes = HALF
        kept = samples * (recipe.sample_bytes * value_bytes // HALF + _logit_bytes(recipe))
        values = 1 if recipe.lora else VALUES_PER_PARAMETER  # frozen weights have no gradient
        state = values * weight_bytes * recipe.parameters
    return ranks * (PROCESS_BYTES + state) + kept


def _logit_bytes(recipe: Recipe) -> int:
    """What the loss of a language model needs for each sample; 0 for other tasks."""
    tokens = 0
    if recipe.task in ("causal-lm", "masked-lm"):
        tokens = recipe.every_length or 0
    elif recipe.task == "seq2seq-lm":
        tokens = recipe.target_length or 0
    return LOGIT_BYTES * tokens * int(recipe.model.get("vocab_size", 0))


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
