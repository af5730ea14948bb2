"""Where the time of a plan's steps goes, as its ranks tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cputune.plans.plan import Plan
from cputune.records.result import Profile
from cputune.records.steps import Living, ProfilingLiving, TimeUp, TrialError


def profile_of_living(living: Living, plan: Plan) -> Profile | None:
    """Where the time of processes goes that have taken steps; None where they fail or tell nothing.

    What the profiler has held changes how malloc serves the steps that follow.
    """
    try:
        told = living.profile() if isinstance(living, ProfilingLiving) else ()
    except (TrialError, TimeUp):
        return None
    return profile_of_ranks(plan, told)


def profile_of_ranks(plan: Plan, told: Sequence[Mapping[str, Any]]) -> Profile | None:
    """What the ranks tell together: mean shares, and all their products."""
    if not told:
        return None
    kinds = dict.fromkeys(kind for rank in told for kind in rank["shares"])
    means = {k: sum(rank["shares"].get(k, 0.0) for rank in told) / len(told) for k in kinds}
    rest = list(told[0]["shares"])[-1]
    ordered = sorted(means, key=lambda kind: (kind == rest, -means[kind]))
    limits = [rank["limit_gflops"] for rank in told]
    products = [rank["gflops"] for rank in told]
    on_their_way: dict[str, float] = {}
    each = [rank.get("reduce_seconds", 0.0) / rank["steps"] for rank in told]
    if len(told) > 1 and any(each):
        for rank, seconds in zip(told, each, strict=True):
            host = str(rank.get("host") or "this host")
            on_their_way[host] = max(on_their_way.get(host, 0.0), seconds)
    return Profile(
        plan=plan,
        shares={kind: means[kind] for kind in ordered},
        steps=told[0]["steps"],
        step_seconds=max(rank["seconds"] / rank["steps"] for rank in told),
        gflops=None if None in products else sum(products),
        limit_gflops=None if None in limits else sum(limits),
        dtype=told[0]["dtype"],
        reduce_seconds=on_their_way,
        wire_seconds=min(each) if on_their_way else None,
    )
