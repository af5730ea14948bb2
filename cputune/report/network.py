"""What the network between hosts costs, as a result knows it: in words."""

from __future__ import annotations

from collections.abc import Iterator

from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.records.result import Measured, Result
from cputune.text.plain import figure


def network_lines(result: Result) -> Iterator[str]:
    """How long gradients are on their way, who waits for whom, and what a second node would need.

    The rank that the others wait for waits for nobody: it is on the wire alone.
    """
    profile = result.profile
    if profile is not None and profile.wire_seconds is not None:
        wire = profile.wire_seconds
        waits = ", ".join(
            f"{host} {figure(max(0.0, seconds - wire))} s"
            for host, seconds in profile.reduce_seconds.items()
        )
        yield (
            f"gradients are on their way for {figure(max(profile.reduce_seconds.values()))} s of "
            f"a step: {figure(wire)} s on the wire, waiting for the slowest rank: {waits}"
        )
    measured = next((o for o in (result.best, result.baseline) if o.plan.nodes == 1), None)
    if (
        measured is not None
        and (needed := second_node_pays_from(result.workload, measured)) is not None
    ):
        sent = sent_bytes(result.workload, measured.plan)
        yield (
            f"a second node would pay from {figure(needed)} Gbit/s on, where it halves the "
            f"computing: a step sends {figure((sent or 0.0) / 1e6)} MB from each node"
        )


def second_node_pays_from(job: Workload, measured: Measured) -> float | None:
    """Gbit/s of a network over which two nodes are as fast as this one; None where not known.

    A step of one node takes T. Two take T / 2 to compute, and add up their gradients by a ring, in
    which each sends 2 (n - 1) / n of them (Patarasuk and Yuan 2009), all of them where n = 2. So
    they are faster from bytes / (T / 2) on. What is sent while others compute makes it better, what
    each rank does alone (the optimizer's step) worse.
    """
    samples, sent = job.global_batch_size, sent_bytes(job, measured.plan)
    rate = measured.samples_per_second.centre
    alone = job.batch_per_rank is not None or job.framework == "pytorch"
    if alone or not sent or not samples or samples < 2 or rate <= 0:
        return None
    return 2 * 8 * sent * rate / samples / 1e9


def sent_bytes(job: Workload, plan: Plan) -> float | None:
    """Bytes of the gradients that a rank sends in a step; None where they are not known.

    A plan of one rank sends none: then those that a plan like it would send, rows of an embedding
    that no token touches left out.
    """
    whole, touched = job.gradient_bytes, job.touched_bytes
    if whole is None:
        return None
    sparse = touched is not None and touched < 0.8 * whole
    if plan.world_size > 1:
        sparse = plan.setting("gradients") == "sparse"
    halved = plan.setting("gradient_precision") == "bf16"
    return (touched if sparse and touched is not None else whole) / (2 if halved else 1)
