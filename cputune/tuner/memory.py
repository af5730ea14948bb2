"""How much memory a plan needs at least, so that what surely does not fit is not tried.

A rough lower estimate, of what cannot be saved: a plan that it lets pass may still run
out of memory (and is then a failed trial), one that it stops would certainly do so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cputune.facts import HostFacts
from cputune.workload import Recipe, Workload

RUNTIME_BYTES = 400 << 20
"""Resident memory of a process that has imported torch and transformers, before a model."""

STATE_BYTES_PER_PARAMETER = 16
"""fp32 weights, gradients and the two moments of AdamW, 4 bytes each (Rajbhandari et al.
2020, "ZeRO", section 3.1); autocast keeps its bf16 copies beside them."""

ACTIVATION_BYTES = 34
"""Bytes of activations per token, hidden unit and layer in 16-bit, without the attention
matrix, which fused attention never stores (Korthikanti et al. 2022, arXiv:2205.05198, eq. 2)."""

USABLE_SHARE = 0.95


def needed_bytes(workload: Workload, ranks: int) -> int:
    """Memory of all ranks of a job on one node, at least."""
    per_rank = RUNTIME_BYTES
    activations = 0
    if workload.recipe is not None:
        per_rank += STATE_BYTES_PER_PARAMETER * _parameters(workload.recipe.model)
        samples = (
            workload.batch_per_rank * ranks
            if workload.batch_per_rank is not None
            else workload.global_batch_size or ranks
        )
        activations = samples * _activation_bytes_per_sample(workload.recipe)
    return ranks * per_rank + activations


def available_bytes(facts: HostFacts) -> int | None:
    """What a job may use: the cgroup's limit or the machine's memory, whichever is less."""
    known = [
        size
        for size in (facts.limits.memory_bytes, facts.memory.total_bytes)
        if size is not None and size > 0
    ]
    return int(min(known) * USABLE_SHARE) if known else None


def _number(model: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = model.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _shape(model: Mapping[str, Any]) -> tuple[int, int, int]:
    hidden = _number(model, "hidden_size", "dim", "n_embd", "d_model")
    layers = _number(model, "num_hidden_layers", "n_layers", "n_layer", "num_layers")
    inner = _number(model, "intermediate_size", "hidden_dim", "n_inner", "d_ff") or 4 * hidden
    return hidden, layers, inner


def _parameters(model: Mapping[str, Any]) -> int:
    """Weights of a transformer encoder: embeddings, attention (4 h²), feed-forward (2 h i)."""
    hidden, layers, inner = _shape(model)
    return _number(model, "vocab_size") * hidden + layers * (4 * hidden**2 + 2 * hidden * inner)


def _activation_bytes_per_sample(recipe: Recipe) -> int:
    hidden, layers, _ = _shape(recipe.model)
    return recipe.sequence_length * hidden * layers * ACTIVATION_BYTES
