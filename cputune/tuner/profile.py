"""Where the time of a plan's steps goes, as its ranks report it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cputune.plans.plan import Plan
from cputune.records.result import Profile
from cputune.records.steps import Living, ProfilingLiving, TimeUp, TrialError
from cputune.tuner.events import Message
from cputune.tuner.measuring import Measuring


def profile_plan(measuring: Measuring, plan: Plan, living: Living) -> None:
    """Record where the time of these processes of a plan goes, if there is time for it.

    It is their last task: the profiler changes how malloc serves later steps.
    """
    if measuring.timer.up(1.0) or not isinstance(living, ProfilingLiving):
        return
    measuring.on_event(Message(text=f"profiling {plan.short()}"))
    try:
        states = living.profile()
    except (TrialError, TimeUp):
        states = ()
    measuring.findings.profiles[plan] = profile_of_ranks(plan, states)


def profile_of_ranks(plan: Plan, states: Sequence[Mapping[str, Any]]) -> Profile | None:
    """The profile over all ranks: mean shares, and all their matmuls."""
    if not states:
        return None
    sums: dict[str, float] = {}
    for rank in states:
        for kind, share in rank["shares"].items():
            sums[kind] = sums.get(kind, 0.0) + share
    means = {kind: total / len(states) for kind, total in sums.items()}
    rest = list(states[0]["shares"])[-1]
    ordered = sorted(means, key=lambda kind: (kind == rest, -means[kind]))
    limits = [rank["limit_gflops"] for rank in states]
    products = [rank["gflops"] for rank in states]
    on_their_way: dict[str, float] = {}
    each = [rank.get("reduce_seconds", 0.0) / rank["steps"] for rank in states]
    if len(states) > 1 and any(each):
        for rank, seconds in zip(states, each, strict=True):
            host = str(rank.get("host") or "this host")
            on_their_way[host] = max(on_their_way.get(host, 0.0), seconds)
    return Profile(
        plan=plan,
        shares={kind: means[kind] for kind in ordered},
        steps=states[0]["steps"],
        step_seconds=max(rank["seconds"] / rank["steps"] for rank in states),
        gflops=None if None in products else sum(products),
        limit_gflops=None if None in limits else sum(limits),
        dtype=states[0]["dtype"],
        reduce_seconds=on_their_way,
        wire_seconds=min(each) if on_their_way else None,
    )
