"""Describes what the network between hosts costs."""

from __future__ import annotations

from collections.abc import Iterator

from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.records.result import Measured, Result
from cputune.text.plain import figure


def network_lines(result: Result) -> Iterator[str]:
    """The time for sending gradients, the waiting of hosts, and what a second node needs."""
    profile = result.profile
    if profile is not None and profile.wire_seconds is not None:
        wire = profile.wire_seconds
        waits = []
        for host, seconds in profile.reduce_seconds.items():
            waits.append(f"{host} {figure(max(0.0, seconds - wire))} s")
        yield (
            f"sending gradients takes {figure(max(profile.reduce_seconds.values()))} s of a step: "
            f"{figure(wire)} s on the wire; waiting for the slowest rank: {', '.join(waits)}"
        )
    if result.disturbed:  # the speed of one node is not known, and all follows from it
        return
    for measured in (result.best, result.baseline):
        if measured.plan.nodes != 1:
            continue
        needed = second_node_pays_from(result.workload, measured)
        if needed is not None:
            sent = sent_bytes(result.workload, measured.plan)
            yield (
                f"a second node would be faster from {figure(needed)} Gbit/s on, if it halves the "
                f"computing: a step sends {figure((sent or 0.0) / 1e6)} MB from each node"
            )
        return


def second_node_pays_from(job: Workload, measured: Measured) -> float | None:
    """Gbit/s of a network over which two nodes are as fast as this one. None if not known.

    A step of one node takes T. Two nodes take T / 2 to compute, and add their gradients by a ring,
    in which each sends 2 (n - 1) / n of them (Patarasuk and Yuan 2009): all of them for n = 2. So
    they are faster from bytes / (T / 2) on. Sending while others compute would make it better, work
    that each rank repeats (the optimizer's step) makes it worse.
    """
    samples, sent = job.global_batch_size, sent_bytes(job, measured.plan)
    rate = measured.samples_per_second.centre
    alone = job.batch_per_rank is not None or job.framework == "pytorch"
    if alone or not sent or not samples or samples < 2 or rate <= 0:
        return None
    return 2 * 8 * sent * rate / samples / 1e9


def sent_bytes(job: Workload, plan: Plan) -> float | None:
    """Bytes of the gradients that a rank sends in a step. None if not known.

    For a plan of one rank it is what it would send with more ranks, without rows of an embedding
    that no token uses.
    """
    gradients, touched = job.gradient_bytes, job.touched_bytes
    if gradients is None:
        return None
    sparse = touched is not None and touched < 0.8 * gradients
    if plan.world_size > 1:
        sparse = plan.setting("gradients") == "sparse"
    sent = gradients
    if sparse and touched is not None:
        sent = touched
    if plan.setting("gradient_precision") == "bf16":
        return sent / 2
    return sent
