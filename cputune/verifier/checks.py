"""What the ranks saw, held against the plan. Pure functions from records to checks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cputune import cpulist
from cputune.plan import Plan
from cputune.ranks.compare import Comparison, compare
from cputune.ranks.launched import Launched, Rank
from cputune.verifier import promises
from cputune.verifier.interface import Expected
from cputune.verifier.records import FAILED, NOT_CHECKED, PASSED, Evidence, Outcome, State

REFUSAL = re.compile(r"^error: (.+)\nhint: (.+)$", re.MULTILINE)
"""How an emitted script says what is missing on this machine, before it starts a rank."""

Affinity = Callable[[Plan, Sequence[Rank]], tuple[Evidence, ...]]


def outcomes(
    seen: Launched,
    expected: Expected,
    plan: Plan,
    consumer: str,
    affinity: Affinity | None = None,
    interpreter: str | None = None,
) -> tuple[Outcome, ...]:
    """The checks of one launch: that it ran, and in every rank what the plan says.

    ``interpreter`` is the one that the ranks must run in; None where any will do.

    ``affinity`` looks at the CPUs of the ranks where a scheduler has dealt them out; else
    they are those that the plan names.
    """
    start = started(seen, plan, expected.steps, consumer)
    ranks = [rank for rank in seen.ranks if rank.state is not None]
    if not ranks:
        return (start,)
    checks = [start, *_of_plan(plan, ranks, consumer, numbered=affinity is None)]
    if plan.nodes > 1 and expected.hosts:
        checks.append(spread(plan, ranks, consumer))
    if affinity is not None:
        checks.append(_check("affinity", affinity(plan, ranks), consumer))
    if expected.environment is not None:
        checks += _held("environment", promises.environment(expected.environment, ranks), consumer)
    checks += _held("workload", promises.workload(expected, ranks), consumer)
    checks += _held("interpreter", promises.interpreter(interpreter, ranks), consumer)
    checks.append(loss(ranks, consumer))
    if expected.global_batch_size is not None:
        checks.append(batch(ranks, expected.global_batch_size, consumer))
    return tuple(checks)


def _of_plan(
    plan: Plan, ranks: Sequence[Rank], consumer: str, *, numbered: bool
) -> Iterator[Outcome]:
    """One outcome for each thing that the plan says of its ranks."""
    states = [(rank.number, rank.state) for rank in ranks if rank.state is not None]
    rows: dict[str, list[Comparison]] = {}
    for row in compare(plan, states):
        if numbered or not row.by_cpu_number:
            rows.setdefault(row.what, []).append(row)
    for what, compared in rows.items():
        evidence = tuple(
            Evidence(
                what=what,
                rank=row.rank,
                expected=row.expected,
                seen="not known" if row.seen is None else row.seen,
            )
            for row in compared
        )
        unknown = [row for row in compared if row.seen is None]
        if unknown and not any(row.differs for row in compared):
            why = unknown[0].unknown or "the rank does not show it"
            summary = f"rank {unknown[0].rank}: not known: {why}"
            yield _named(what, NOT_CHECKED, summary, consumer, evidence)
        else:
            yield _check(what, evidence, consumer)


def _held(name: str, evidence: tuple[Evidence, ...], consumer: str) -> tuple[Outcome, ...]:
    """The check of a promise, where there was one and the ranks show anything of it."""
    if not evidence:
        return ()
    held = _check(name, evidence, consumer)
    if held.state == FAILED or name == "interpreter":
        return (held,)
    told = dict.fromkeys(row.seen for row in evidence)
    return (replace(held, summary=", ".join(told) + " in every rank"),)


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


def spread(plan: Plan, ranks: Sequence[Rank], consumer: str) -> Outcome:
    """Whether every node of the plan was a machine of its own, by the names of the machines.

    Machines that all have one name cannot be told apart.
    """
    rows = [
        Evidence(what="host", rank=rank.number, seen=(rank.state or {}).get("host", "not known"))
        for rank in ranks
    ]
    nodes: dict[int, set[str]] = {}
    for row in rows:
        nodes.setdefault((row.rank or 0) // plan.processes_per_node, set()).add(row.seen)
    names = {name for seen in nodes.values() for name in seen}
    if len(names) == 1:
        why = f"all ranks ran on {names.pop()}: that these are {plan.nodes} machines is not seen"
        return _named("hosts", NOT_CHECKED, why, consumer, rows)
    good = len(names) == len(nodes) and all(len(seen) == 1 for seen in nodes.values())
    told = ", ".join(
        f"{len([row for row in rows if row.seen == name])} on {name}" for name in sorted(names)
    )
    return _named("hosts", PASSED if good else FAILED, f"ranks: {told}", consumer, rows)


def own_affinity(plan: Plan, ranks: Sequence[Rank]) -> tuple[Evidence, ...]:
    """Every rank on as many CPUs as it has threads, and on none of another rank of its node.

    For a scheduler that deals out CPUs by its own numbering.
    """
    rows = []
    for rank in ranks:
        seen = set(cpus_of(rank))
        node = rank.number // plan.processes_per_node
        others = {
            cpu
            for other in ranks
            if other is not rank and other.number // plan.processes_per_node == node
            for cpu in cpus_of(other)
        }
        good = len(seen) >= plan.threads_per_process and not seen & others
        wanted = f"{plan.threads_per_process} CPUs of its own"
        rows.append(placed(rank, good=good, wanted=wanted))
    return tuple(rows)


def placed(rank: Rank, *, good: bool, wanted: str) -> Evidence:
    """The CPUs of one rank; ``wanted`` is said where they are not good."""
    seen = cpulist.render(cpus_of(rank))
    return Evidence(what="affinity", rank=rank.number, seen=seen, expected=seen if good else wanted)


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
    """Whether the ranks together take the global batch that was tuned.

    Of a Trainer its arguments count, as in a trial: TRL's DPO makes two sequences of a sample.
    """
    taken = sum(_samples(rank) for rank in ranks if rank.steps)
    evidence = (Evidence(what="samples per step", expected=str(expected), seen=str(taken)),)
    return _check("global batch", evidence, consumer)


def _samples(rank: Rank) -> int:
    state = rank.state or {}
    batch, accumulation = state.get("batch"), state.get("accumulation")
    if state.get("framework") == "trainer" and batch and accumulation:
        return int(batch) * int(accumulation)
    return rank.steps[0].samples


def cpus_of(rank: Rank) -> Sequence[int]:
    """The CPUs that a rank may run on, as it has shown them."""
    return rank.state.get("affinity", ()) if rank.state is not None else ()


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
