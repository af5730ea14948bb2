"""The knob ``nodes``: on how many of the hosts that were named a job runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cputune.knobs.record import Effect, Knob, whole_number


def node_counts(hosts: int) -> Sequence[int]:
    """How many of so many hosts are tried: 1, 2, 4, …, and all."""
    powers = [1 << power for power in range(hosts.bit_length()) if 1 << power < hosts]
    return (*powers, max(1, hosts))


NODES = Knob(
    name="nodes",
    summary="how many of the hosts that were named take part (tune --hosts)",
    today=1,
    parse=whole_number("nodes", least=1),
    effect=Effect(
        own=0.35,
        within={"ranks": 0.1},
        feature=lambda plan, at: math.log2(plan.nodes),
        scale=1.5,
        expected=lambda facts, plan: 0.2 * math.log2(plan.nodes),
        source="assumed: adding up gradients over a network takes back part of what a second node "
        "brings, anything from a little to more than all of it",
    ),
)
