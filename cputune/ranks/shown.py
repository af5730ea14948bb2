"""What ranks have shown of themselves, in the words and values of a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cputune import cpulist
from cputune.inside.messages import RankState
from cputune.workload import Recipe


def global_batch(states: Sequence[RankState]) -> int:
    """Samples of one optimizer step of all ranks."""
    return sum(
        int(state["batch"]) * int(state["accumulation"])
        if state.get("batch") and state.get("accumulation")
        else int(state["samples"])
        for state in states
    )


def fed_with(recipe: Recipe | None, states: Sequence[RankState]) -> str | None:
    """What a trial was fed with, as a sentence; None where no rank has said it."""
    if recipe is None:
        return "the script's own data"
    if not states:
        return None
    if states[0].get("dataset") != "SyntheticSamples":
        return f"the data set {recipe.dataset}"
    kind = "images" if recipe.task == "image-classification" else "tokens"
    if recipe.dataset is None:
        return f"synthetic {kind}: the recipe names no data set"
    return f"synthetic {kind} of the same shape: {recipe.dataset} could not be reached"


def for_people(state: RankState) -> dict[str, Any]:
    """A rank's state as it stands in a result: plain values, CPUs as a list's text."""
    kept = (
        "rank", "local_rank", "world_size", "backend", "threads", "dtype", "openmp", "allocator",
        "preload", "ipex", "framework", "parses_arguments", "batch", "accumulation", "samples",
        "learning_rate", "dataset", "optimizer", "products", "products_rounded", "dropout",
        "compiled",
        "python", "pid", "peak_bytes", "mapped_blocks", "huge_pages_bytes",
        "loader_workers",
    )  # fmt: skip
    record: dict[str, Any] = {name: value for name, value in state.items() if name in kept}
    record["affinity"] = cpulist.render(state["affinity"])
    record.update(state.get("versions", {}))
    return record
