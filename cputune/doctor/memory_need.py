"""The least memory that one rank needs to train each shipped recipe."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from cputune.workload import load_recipe, recipe_names

BYTES_PER_PARAMETER = 16
"""fp32 weights and gradients, and the two moments of AdamW
(https://huggingface.co/docs/transformers/model_memory_anatomy)."""

PROCESS_BYTES = 500 << 20
"""A process that has imported torch and transformers, before any model."""


@cache
def least_training_bytes() -> tuple[tuple[str, int], ...]:
    """(recipe, bytes) for each shipped recipe whose model is described by its sizes."""
    needs = []
    for name in recipe_names():
        count = parameters(load_recipe(name).model)
        if count is not None:
            needs.append((name, PROCESS_BYTES + BYTES_PER_PARAMETER * count))
    return tuple(needs)


def parameters(model: Mapping[str, Any]) -> int | None:
    """Weights of a BERT-like encoder: embeddings, and per layer 4 h² + 2 h × intermediate.

    Biases and norms are below one percent and left out. None where sizes are missing.
    """

    def size(*names: str) -> int | None:
        return next((model[n] for n in names if isinstance(model.get(n), int)), None)

    hidden = size("hidden_size", "dim")
    layers = size("num_hidden_layers", "n_layers")
    inner = size("intermediate_size", "hidden_dim")
    if hidden is None or layers is None or inner is None:
        return None
    vocabulary = size("vocab_size") or 30522
    positions = size("max_position_embeddings") or 512
    return (vocabulary + positions) * hidden + layers * (4 * hidden**2 + 2 * hidden * inner)
