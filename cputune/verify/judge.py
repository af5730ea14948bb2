"""What the ranks saw, held against the plan. Pure functions from records to checks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cputune import cpulist
from cputune.plan import Plan
from cputune.result import Throughput
from cputune.verify.interface import Expected
from cputune.verify.launched import Launched, Rank
from cputune.verify.records import FAILED, NOT_CHECKED, PASSED, Check, Evidence, Ratio

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
WARMUP_STEPS = 2
DELAYED_SHARE = 0.1
"""A step that waited for a CPU for more than this share of its time says nothing of the plan."""

SLOWEST_RATIO = 0.9
"""A launch whose whole interval lies below this does not reproduce what was tuned."""

Affinity = Callable[[Plan, Sequence[Rank]], tuple[Evidence, ...]]


def judge(
    seen: Launched, expected: Expected, plan: Plan, consumer: str, affinity: Affinity | None = None
) -> tuple[Check, ...]:
    """The checks of one launch: that it ran, and in every rank what the plan says."""
    start = started(seen, plan, expected.steps, consumer)
    ranks = [rank for rank in seen.ranks if rank.state is not None]
    if not ranks:
        return (start,)
    several = plan.world_size > 1
    checks = [
        start,
        _same("world size", ranks, consumer, lambda r: (plan.world_size, _of(r, "world_size"))),
        _same("threads", ranks, consumer, lambda r: (plan.threads_per_process, _of(r, "threads"))),
        _check("affinity", (affinity or exact_affinity)(plan, ranks), consumer),
        _same("precision", ranks, consumer, lambda r: (DTYPES[plan.precision], _of(r, "dtype"))),
    ]
    if several:
        checks.append(
            _same("backend", ranks, consumer, lambda r: (plan.backend, _of(r, "backend")))
        )
    if plan.preload:
        checks.append(_same("preload", ranks, consumer, lambda r: _preload(plan, r)))
    if plan.ipex:
        checks.append(_same("IPEX", ranks, consumer, lambda r: (True, _of(r, "ipex"))))
    checks.append(loss(ranks, consumer))
    if expected.global_batch_size is not None:
        checks.append(batch(ranks, expected.global_batch_size, consumer))
    return tuple(checks)


def started(seen: Launched, plan: Plan, steps: int, consumer: str) -> Check:
    """Whether every rank of the plan made its steps, and how the launch ended if not."""
    evidence = [
        Evidence(
            what="steps",
            rank=rank.number,
            expected=f"at least {steps}",
            seen=str(len(rank.steps)) + (f"; {rank.trouble}" if rank.trouble else ""),
        )
        for rank in seen.ranks
    ]
    if seen.enough:
        summary = f"{len(seen.ranks)} ranks made {steps} steps in {seen.seconds:.0f} s"
        state = PASSED if len(seen.ranks) == plan.world_size else FAILED
        if state == FAILED:
            summary = f"{len(seen.ranks)} ranks ran, the plan has {plan.world_size}"
        return _named("launch", state, summary, consumer, evidence)
    if seen.timed_out:
        summary = f"no {steps} steps within {seen.seconds:.0f} s"
    else:
        summary = f"it ended with {seen.returncode} before {steps} steps"
    if not seen.ranks:
        summary += ", and no rank trained"
    lines = [line for line in seen.output.splitlines() if line.strip()]
    evidence += [Evidence(what="output", seen=line[:400]) for line in lines[-15:]]
    return _named("launch", FAILED, summary, consumer, evidence)


def exact_affinity(plan: Plan, ranks: Sequence[Rank]) -> tuple[Evidence, ...]:
    """Every rank on the CPUs that the plan gives its place on the node."""
    return tuple(
        Evidence(
            what="CPUs",
            rank=rank.number,
            expected=cpulist.render(plan.cpus[rank.number % plan.processes_per_node]),
            seen=cpulist.render(_of(rank, "affinity") or ()),
        )
        for rank in ranks
    )


def own_affinity(plan: Plan, ranks: Sequence[Rank]) -> tuple[Evidence, ...]:
    """Every rank on as many CPUs as it has threads, and on none of another rank of its node.

    For a scheduler that deals out CPUs by its own numbering.
    """
    rows = []
    for rank in ranks:
        seen = set(_of(rank, "affinity") or ())
        node = rank.number // plan.processes_per_node
        others = {
            cpu
            for other in ranks
            if other is not rank and other.number // plan.processes_per_node == node
            for cpu in _of(other, "affinity") or ()
        }
        good = len(seen) >= plan.threads_per_process and not seen & others
        wanted = f"{plan.threads_per_process} CPUs of its own"
        text = cpulist.render(seen)
        rows.append(
            Evidence(what="CPUs", rank=rank.number, seen=text, expected=text if good else wanted)
        )
    return tuple(rows)


def loss(ranks: Sequence[Rank], consumer: str) -> Check:
    """Whether every loss is a number, and training does not run away."""
    evidence, wrong = [], []
    for rank in ranks:
        values = [step.loss for step in rank.steps if step.loss is not None]
        if not values:
            continue
        text = f"{values[0]:.4g} at the first step, {values[-1]:.4g} at step {len(values)}"
        evidence.append(Evidence(what="loss", rank=rank.number, seen=text))
        if not all(map(math.isfinite, values)) or values[-1] > 10 * abs(values[0]) + 1:
            wrong.append(str(rank.number))
    if not evidence:
        return _named("loss", NOT_CHECKED, "the script reports no loss", consumer, ())
    summary = f"runs away in rank {', '.join(wrong)}" if wrong else "finite in every rank"
    return _named("loss", FAILED if wrong else PASSED, summary, consumer, evidence)


def batch(ranks: Sequence[Rank], expected: int, consumer: str) -> Check:
    """Whether the ranks together take the global batch that was tuned."""
    taken = sum(rank.steps[0].samples for rank in ranks if rank.steps)
    evidence = (Evidence(what="samples per step", expected=str(expected), seen=str(taken)),)
    return _check("global batch", evidence, consumer)


def step_rates(ranks: Sequence[Rank]) -> tuple[list[float], int]:
    """Samples per second of each step of the whole job, and how many steps were delayed.

    A step lasts as long as in its slowest rank; its samples are those of all ranks.
    Warm-up is left out, and so are steps that waited for a CPU; where nearly every step
    did, all of them count: a figure of a busy machine is better than none.
    """
    count = min((len(rank.steps) for rank in ranks), default=0)
    quiet, every = [], []
    for index in range(min(WARMUP_STEPS, max(0, count - 1)), count):
        steps = [rank.steps[index] for rank in ranks]
        seconds = max(step.seconds for step in steps)
        if seconds <= 0:
            continue
        rate = sum(step.samples for step in steps) / seconds
        every.append(rate)
        if max(step.delayed_seconds for step in steps) <= DELAYED_SHARE * seconds:
            quiet.append(rate)
    return quiet if len(quiet) >= 5 else every, len(every) - len(quiet)


def throughput(ranks: Sequence[Rank], tuned: Throughput) -> Ratio | None:
    """The launch's samples per second over the tuned ones, None where there were no steps.

    The interval of a median is that of its order statistics; that of the ratio follows
    from both intervals (MOVER: Donner and Zou, Statistical Methods in Medical Research
    2012, 21(4), on logarithms).
    """
    rates, delayed = step_rates(ranks)
    rates.sort()
    if not rates or min(tuned.low, tuned.median) <= 0:
        return None
    low, high = median_interval(rates)
    measured = statistics.median(rates)
    ratio = measured / tuned.median
    below = math.hypot(math.log(measured / low), math.log(tuned.high / tuned.median))
    above = math.hypot(math.log(high / measured), math.log(tuned.median / tuned.low))
    return Ratio(
        ratio=ratio,
        low=ratio * math.exp(-below),
        high=ratio * math.exp(above),
        measured=measured,
        tuned=tuned.median,
        steps=len(rates),
        delayed_steps=delayed,
    )


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median from order statistics (binomial); below 6 values the range."""
    count = len(ordered)
    tail, rank = 0.5**count, 0
    while tail <= 0.025:
        rank += 1
        tail += math.comb(count, rank) * 0.5**count
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[count - 1 - rank]


def throughput_check(ratio: Ratio | None, consumer: str) -> Check:
    """Whether the launch is as fast as the tuned trial was, within noise.

    One that is slower on a machine that was busy meanwhile says nothing of the launch.
    """
    name = "throughput"
    if ratio is None:
        return _named(name, NOT_CHECKED, "nothing was measured to compare with", consumer, ())
    text = (
        f"{ratio.measured:.4g} samples/s, {ratio.ratio:.2f} × the tuned "
        f"{ratio.tuned:.4g} ({ratio.low:.2f} to {ratio.high:.2f}, {ratio.steps} steps)"
    )
    if ratio.high >= SLOWEST_RATIO:
        return _named(name, PASSED, text, consumer, ())
    if ratio.delayed_steps < ratio.steps / 2:
        return _named(name, FAILED, text, consumer, ())
    return Check(
        name=name,
        state=NOT_CHECKED,
        consumer=consumer,
        summary=f"{text}; {ratio.delayed_steps} steps waited for a CPU",
        remedy="verify again when nothing else runs here",
    )


def _of(rank: Rank, key: str) -> Any:
    state: Mapping[str, Any] = rank.state or {}
    return state.get(key)


def _preload(plan: Plan, rank: Rank) -> tuple[object, object]:
    mapped = set(_of(rank, "mapped") or ())
    seen = [path for path in plan.preload if path in mapped]
    return list(plan.preload), seen


def _same(
    name: str,
    ranks: Sequence[Rank],
    consumer: str,
    pair: Callable[[Rank], tuple[object, object]],
) -> Check:
    rows = [(rank.number, *pair(rank)) for rank in ranks]
    evidence = tuple(
        Evidence(what=name, rank=number, expected=str(expected), seen=str(seen))
        for number, expected, seen in rows
    )
    return _check(name, evidence, consumer)


def _check(name: str, evidence: tuple[Evidence, ...], consumer: str) -> Check:
    wrong = [row for row in evidence if row.expected is not None and row.expected != row.seen]
    if wrong:
        first = wrong[0]
        where = "" if first.rank is None else f"rank {first.rank}: "
        return _named(
            name, FAILED, f"{where}{first.seen}, the plan has {first.expected}", consumer, evidence
        )
    values = list(dict.fromkeys(row.seen for row in evidence))
    ranks = "" if any(row.rank is None for row in evidence) else " in every rank"
    text = " | ".join(values) if len(values) > 1 else f"{''.join(values)}{ranks}"
    return _named(name, PASSED, text, consumer, evidence)


def _named(
    name: str, state: str, summary: str, consumer: str, evidence: Sequence[Evidence]
) -> Check:
    return Check(
        name=name, state=state, summary=summary, consumer=consumer, evidence=tuple(evidence)
    )
