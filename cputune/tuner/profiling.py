"""Where the time of a plan's steps goes, told by ranks, as a result keeps it.

Of a plan that is still to be measured new processes are profiled: what the profiler has held
changes how malloc serves those that follow. Of the best plan it is those that were measured last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cputune.plan import Plan
from cputune.result import Profile
from cputune.steps import (
    Living,
    ProfilingLiving,
    ProfilingRunner,
    PunctualRunner,
    TimeUp,
    TrialError,
)


def profile_of_living(living: Living, plan: Plan) -> Profile | None:
    """That of processes which have taken steps; None where they cannot tell it, or fail."""
    try:
        return of_ranks(plan, living.profile()) if isinstance(living, ProfilingLiving) else None
    except (TrialError, TimeUp):
        return None


def profile_of(
    runner: ProfilingRunner, plan: Plan, seconds_left: Callable[[], float]
) -> Profile | None:
    """The profile of a plan; None where the run does not end well."""
    if isinstance(runner, PunctualRunner):
        runner.keep_to(seconds_left)
    try:
        return of_ranks(plan, runner.profile(plan))
    except (TrialError, TimeUp):
        return None  # it has run before: what it shows beside its speed is not worth an error


def time_shares(
    runner: ProfilingRunner, plan: Plan, seconds_left: Callable[[], float]
) -> dict[str, float]:
    """The shares of its time by kind; none where the run does not end well."""
    profile = profile_of(runner, plan, seconds_left)
    return {} if profile is None else {k: min(1.0, share) for k, share in profile.shares.items()}


def of_ranks(plan: Plan, told: Sequence[Mapping[str, Any]]) -> Profile | None:
    """What the ranks tell together: mean shares, and all their products."""
    if not told:
        return None
    kinds = dict.fromkeys(kind for rank in told for kind in rank["shares"])
    means = {k: sum(rank["shares"].get(k, 0.0) for rank in told) / len(told) for k in kinds}
    rest = list(told[0]["shares"])[-1]
    ordered = sorted(means, key=lambda kind: (kind == rest, -means[kind]))
    limits = [rank["limit_gflops"] for rank in told]
    products = [rank["gflops"] for rank in told]
    return Profile(
        plan=plan,
        shares={kind: means[kind] for kind in ordered},
        steps=told[0]["steps"],
        step_seconds=max(rank["seconds"] / rank["steps"] for rank in told),
        gflops=None if None in products else sum(products),
        limit_gflops=None if None in limits else sum(limits),
        dtype=told[0]["dtype"],
    )
