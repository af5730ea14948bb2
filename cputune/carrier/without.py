"""What a launch lacks where nothing is set in the script's own objects."""

from __future__ import annotations

from collections.abc import Iterator

from cputune.knobs import plan_arguments
from cputune.plan import Plan
from cputune.workload import Workload


def lost_without_force(workload: Workload, plan: Plan, today: Plan | None) -> Iterator[str]:
    """What of a plan neither flags nor variables carry into this script, in words and numbers.

    For a script that is not known to take flags. ``today`` is the launch as its ranks were
    seen to run it; None where it was never run.
    """
    if plan.world_size > 1 and workload.batch_per_rank is None:
        yield _batch(workload, plan.world_size)
    if today is None or today.precision != plan.precision:
        known = "its own, which is not known" if today is None else today.precision
        yield f"precision: {known} in place of {plan.precision}"
    if plan.world_size > 1 and plan.backend != "gloo":
        yield f"backend: gloo in place of {plan.backend}"
    for name, value in plan_arguments(plan).items():
        if name not in ("bf16", "ddp_backend") and value:
            yield f"{name}: not set, in place of {value}"


def _batch(workload: Workload, ranks: int) -> str:
    own = workload.global_batch_size
    told = workload.argument("--per_device_train_batch_size")
    if own is None and told is not None and told.isdigit():
        own = int(told)
    if own is None:
        return f"global batch: {ranks} times the script's own, which each of {ranks} ranks takes"
    return f"global batch: {ranks} × {own} = {ranks * own} samples in place of {own}"
