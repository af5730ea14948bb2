"""The knob ``ranks``: how many training processes a machine runs."""

from __future__ import annotations

import math

from cputune.knobs.record import Effect, Knob, Shown, whole_number

RANKS = Knob(
    name="ranks",
    summary="training processes on each machine; together they take one global batch",
    today=1,
    parse=whole_number("ranks", least=1),
    # accelerate >= 1.13 trains every rank alone without it (huggingface/accelerate#3883).
    variables=lambda plan: {"ACCELERATE_USE_CPU": "true"},
    shown=(
        Shown(
            what="world size",
            expected=lambda plan, local_rank: plan.world_size,
            seen=lambda plan, state: state.get("world_size"),
        ),
    ),
    effect=Effect(
        own=0.15,
        feature=lambda plan, at: math.log2(plan.processes_per_node),
        scale=1.5,
        source="assumed: one rank for each NUMA node instead of one over all is worth 15 % or so",
    ),
)
