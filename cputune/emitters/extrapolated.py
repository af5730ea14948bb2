"""What of a launch was measured and what is extrapolated: nodes, ranks, batches, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cputune.plan import Plan
from cputune.result import Result
from cputune.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large a job is. ``batch_per_rank`` is in samples of a step of the optimizer.

    It is None where the script's own batch counts, whose number nobody has seen.
    """

    nodes: int
    ranks: int
    batch_per_rank: int | None

    @property
    def global_batch_size(self) -> int | None:
        """Samples of a step of all ranks together."""
        return None if self.batch_per_rank is None else self.ranks * self.batch_per_rank

    def describe(self) -> str:
        """``2 nodes, 8 ranks with 12 samples each, 96 together``."""
        words = f"{_count(self.nodes, 'node')}, {_count(self.ranks, 'rank')}"
        if self.batch_per_rank is None:
            return f"{words} that share the script's own batch"
        each = f"{words} with {_count(self.batch_per_rank, 'sample')}"
        return each if self.ranks == 1 else f"{each} each, {self.global_batch_size} together"

    def to_json(self) -> dict[str, Any]:
        """The numbers, for ``cputune verify`` and for other programs."""
        return {**asdict(self), "global_batch_size": self.global_batch_size}


def scale_of(plan: Plan, workload: Workload) -> Scale:
    """How large this plan makes the job. Raises ValueError for a batch that cannot be divided."""
    return Scale(
        nodes=plan.nodes,
        ranks=plan.world_size,
        batch_per_rank=workload.samples_per_rank(plan.world_size),
    )


def measured_scale(result: Result) -> Scale:
    """How large the job was that was measured."""
    return scale_of(result.best.plan, result.workload)


def is_extrapolated(result: Result, plan: Plan) -> bool:
    """Whether the plan runs on another number of nodes than its speed was measured on."""
    return plan.nodes != result.best.plan.nodes


def scale_lines(result: Result | None, plan: Plan, workload: Workload) -> tuple[str, ...]:
    """Of a job on several nodes, or on others than were measured: who takes how many samples."""
    now = scale_of(plan, workload)
    if result is None or not is_extrapolated(result, plan):
        return (f"Batch: {now.describe()}.",) if plan.nodes > 1 else ()
    before = measured_scale(result)
    lines = [
        f"Measured: {before.describe()}.",
        f"Extrapolated: {now.describe()}. Nothing was measured on {_count(now.nodes, 'node')}: "
        "neither speed, nor memory, nor the network between them.",
    ]
    batches = (before.global_batch_size, now.global_batch_size)
    if None not in batches and batches[0] != batches[1]:
        lines.append(
            f"The global batch is {batches[1]} in place of the {batches[0]} that were measured, as "
            "was asked for: that is another training, and its learning rate may have to follow."
        )
    return tuple(lines)


def scale_promise(result: Result | None, plan: Plan, workload: Workload) -> Mapping[str, Any]:
    """The same for machines: ``scale``, and ``measured`` where that was another."""
    if result is None or not is_extrapolated(result, plan):
        return {"scale": scale_of(plan, workload).to_json()} if plan.nodes > 1 else {}
    measured = {
        **measured_scale(result).to_json(),
        "samples_per_second": asdict(result.best.samples_per_second),
    }
    return {
        "scale": scale_of(plan, workload).to_json(),
        "measured": measured,
        "extrapolated": ["nodes", "samples_per_second"],
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
