"""What the ranks saw, held against the plan. Pure functions from records to checks."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cputune import cpulist
from cputune.plan import Plan
from cputune.ranks.launched import Launched, Rank
from cputune.verifier.interface import Expected
from cputune.verifier.records import FAILED, NOT_CHECKED, PASSED, Evidence, Outcome, State

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
REFUSAL = re.compile(r"^error: (.+)\nhint: (.+)$", re.MULTILINE)
"""How an emitted script says what is missing on this machine, before it starts a rank."""

Affinity = Callable[[Plan, Sequence[Rank]], tuple[Evidence, ...]]


def outcomes(
    seen: Launched, expected: Expected, plan: Plan, consumer: str, affinity: Affinity | None = None
) -> tuple[Outcome, ...]:
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


def started(seen: Launched, plan: Plan, steps: int, consumer: str) -> Outcome:
    """Whether every rank of the plan made its steps, and how the launch ended if not.

    A script that says itself what it misses here was not checked, and did not fail.
    """
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
        count = f"{len(seen.ranks)} rank{'' if len(seen.ranks) == 1 else 's'}"
        summary = f"{count} made {steps} steps in {seen.seconds:.0f} s"
        state: State = PASSED if len(seen.ranks) == plan.world_size else FAILED
        if state == FAILED:
            summary = f"{count} ran, the plan has {plan.world_size}"
        return _named("launch", state, summary, consumer, evidence)
    refused = REFUSAL.search(seen.output)
    if refused is not None and not seen.ranks:
        return Outcome(
            name="launch",
            state=NOT_CHECKED,
            consumer=consumer,
            summary=f"it says that it cannot run here: {refused[1]}",
            remedy=refused[2],
        )
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


def loss(ranks: Sequence[Rank], consumer: str) -> Outcome:
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


def batch(ranks: Sequence[Rank], expected: int, consumer: str) -> Outcome:
    """Whether the ranks together take the global batch that was tuned."""
    taken = sum(rank.steps[0].samples for rank in ranks if rank.steps)
    evidence = (Evidence(what="samples per step", expected=str(expected), seen=str(taken)),)
    return _check("global batch", evidence, consumer)


def _of(rank: Rank, key: str) -> Any:
    state: Mapping[str, Any] = rank.state or {}
    return state.get(key)


def _preload(plan: Plan, rank: Rank) -> tuple[str, str]:
    mapped = set(_of(rank, "mapped") or ())
    # /proc/PID/maps has the file that a link leads to.
    seen = [path for path in plan.preload if {path, os.path.realpath(path)} & mapped]
    return ":".join(plan.preload), ":".join(seen)


def _same(
    name: str,
    ranks: Sequence[Rank],
    consumer: str,
    pair: Callable[[Rank], tuple[object, object]],
) -> Outcome:
    rows = [(rank.number, *pair(rank)) for rank in ranks]
    evidence = tuple(
        Evidence(what=name, rank=number, expected=str(expected), seen=str(seen))
        for number, expected, seen in rows
    )
    return _check(name, evidence, consumer)


def _check(name: str, evidence: tuple[Evidence, ...], consumer: str) -> Outcome:
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
    name: str, state: State, summary: str, consumer: str, evidence: Sequence[Evidence]
) -> Outcome:
    return Outcome(
        name=name, state=state, summary=summary, consumer=consumer, evidence=tuple(evidence)
    )
