"""What the ranks saw, held against the plan and the promises. Pure functions."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence

from cputune import cpulist
from cputune.carrier.environment import is_cleared
from cputune.equivalence import equivalent
from cputune.inside.messages import RankState
from cputune.knobs import KNOBS
from cputune.plan import Plan
from cputune.ranks.compare import Comparison, compare
from cputune.ranks.job import Rank
from cputune.ranks.launched import Launched
from cputune.result import Throughput
from cputune.steps import Step
from cputune.text import figure
from cputune.verifier.records import (
    FAILED,
    Evidence,
    Expected,
    Outcome,
    Ratio,
    judged,
    not_checked,
)

REFUSAL = re.compile(r"^error: (.+)\nhint: (.+)$", re.MULTILINE)
"""How an emitted script says what is missing on this machine, before it starts a rank."""


def outcomes(
    seen: Launched,
    expected: Expected,
    plan: Plan,
    consumer: str,
    interpreter: str | None = None,
    *,
    dealt_out: bool = False,
) -> Iterator[Outcome]:
    """The checks of one launch: that it ran, and in every rank what the plan says.

    ``interpreter`` is the one that the ranks must run in; None where any will do. ``dealt_out``:
    a scheduler has dealt out the CPUs; else they are those that the plan names.
    """
    yield started(seen, plan, expected.steps, consumer)
    ranks = [rank for rank in seen.ranks if rank.state is not None]
    if not ranks:
        return
    yield from _of_plan(plan, ranks, consumer, numbered=not dealt_out)
    if plan.nodes > 1 and expected.hosts:
        yield spread(plan, ranks, consumer)
    batch = expected.global_batch_size
    rows = {
        "affinity": own_affinity(plan, ranks) if dealt_out else (),
        "environment": seen_environment(expected, ranks),
        "workload": seen_lengths(expected, ranks),
        "interpreter": seen_interpreter(interpreter, ranks),
        "global batch": () if batch is None else (seen_batch(ranks, batch),),
    }
    for name, evidence in rows.items():
        if found := tuple(evidence):
            yield held(name, found, consumer)
    yield loss(ranks, consumer)
    if expected.training is not None and seen.training is not None:
        recipe = expected.sequence_length is not None
        verdict = equivalent(expected.training, seen.training, other_data=recipe)
        differs = [Evidence(what="training", seen=sentence) for sentence in verdict.differs]
        yield judged("the same training", consumer, differs, verdict.summary)


def held(name: str, rows: Sequence[Evidence], consumer: str) -> Outcome:
    """A check that fails with the first row that shows something else than it should."""
    wrong = [row for row in rows if row.expected not in (None, row.seen)]
    if wrong:
        first = wrong[0]
        where = "" if first.rank is None else f"rank {first.rank}: "
        said = f"{where}{first.seen}, the plan has {first.expected}"
        return judged(name, consumer, wrong, "", rows, wrong=said)
    shown: dict[int | None, list[str]] = {}
    for row in rows:
        shown.setdefault(row.rank, []).append(row.seen)
    alike, *others = shown.values()
    text = ", ".join(alike) + ("" if None in shown else " in every rank")
    if any(one != alike for one in others):
        text = " | ".join(dict.fromkeys(row.seen for row in rows))
    return judged(name, consumer, (), text, rows)


def _of_plan(
    plan: Plan, ranks: Sequence[Rank], consumer: str, *, numbered: bool
) -> Iterator[Outcome]:
    """One outcome for each thing that the plan says of its ranks."""
    rows: dict[str, list[Comparison]] = {}
    for row in compare(plan, [(rank.number, _state(rank)) for rank in ranks]):
        if numbered or not row.by_cpu_number:
            rows.setdefault(row.what, []).append(row)
    for what, compared in rows.items():
        evidence = tuple(
            Evidence(what=what, rank=row.rank, expected=row.expected, seen=row.seen or "not shown")
            for row in compared
        )
        unknown = [row for row in compared if row.seen is None]
        if unknown and not any(row.differs for row in compared):
            why = f"rank {unknown[0].rank}: not known: {unknown[0].unknown}"
            yield not_checked(what, why, consumer=consumer, evidence=evidence)
        else:
            yield held(what, evidence, consumer)


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
        good = f"{count} made {steps} steps in {seen.seconds:.0f} s"
        missing = len(seen.ranks) != plan.world_size
        wrong = f"{count} ran, the plan has {plan.world_size}"
        return judged("launch", consumer, evidence[:missing], good, evidence, wrong=wrong)
    refused = REFUSAL.search(seen.output)
    if refused is not None and not seen.ranks:
        why = f"it says that it cannot run here: {refused[1]}"
        return not_checked("launch", why, refused[2], consumer)
    if seen.timed_out:
        said = f"no {steps} steps within {seen.seconds:.0f} s"
    else:
        said = f"it ended with {seen.returncode} before {steps} steps"
    said += "" if seen.ranks else ", and no rank trained"
    lines = [line for line in seen.output.splitlines() if line.strip()]
    evidence += [Evidence(what="output", seen=line[:400]) for line in lines[-15:]]
    return judged("launch", consumer, [Evidence(what="end", seen=said)], "", evidence, wrong=said)


def _by_node(plan: Plan, ranks: Iterable[Rank]) -> dict[int, list[Rank]]:
    found: dict[int, list[Rank]] = {}
    for rank in ranks:
        found.setdefault(rank.number // plan.processes_per_node, []).append(rank)
    return found


def spread(plan: Plan, ranks: Sequence[Rank], consumer: str) -> Outcome:
    """Whether every node of the plan was a machine of its own, by the names of the machines.

    Machines that all have one name cannot be told apart.
    """
    name_of = {rank.number: _state(rank).get("host", "not known") for rank in ranks}
    rows = [Evidence(what="host", rank=number, seen=name) for number, name in name_of.items()]
    nodes = [{name_of[rank.number] for rank in of} for of in _by_node(plan, ranks).values()]
    names = sorted(set(name_of.values()))
    if len(names) == 1:
        why = f"all ranks ran on {names[0]}: that these are {plan.nodes} machines is not seen"
        return not_checked("hosts", why, consumer=consumer, evidence=rows)
    good = len(names) == len(nodes) and all(len(seen) == 1 for seen in nodes)
    counted = [f"{sum(row.seen == name for row in rows)} on {name}" for name in names]
    said = f"ranks: {', '.join(counted)}"
    return judged("hosts", consumer, () if good else rows, said, rows, wrong=said)


def own_affinity(plan: Plan, ranks: Sequence[Rank]) -> Iterator[Evidence]:
    """Every rank on as many CPUs as it has threads, and on none of another rank of its node.

    For a scheduler that deals out CPUs by its own numbering.
    """
    for of_node in _by_node(plan, ranks).values():
        together = [cpu for rank in of_node for cpu in _state(rank).get("affinity", ())]
        for rank in of_node:
            own = _state(rank).get("affinity", ())
            good = all(together.count(cpu) == 1 for cpu in own)
            seen = cpulist.render(own)
            enough = good and len(own) >= plan.threads_per_process
            wanted = seen if enough else f"{plan.threads_per_process} CPUs of its own"
            yield Evidence(what="affinity", rank=rank.number, seen=seen, expected=wanted)


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
            wrong.append(evidence[-1])
    if not evidence:
        return not_checked("loss", "the script reports no loss", consumer=consumer)
    said = f"runs away in rank {', '.join(str(row.rank) for row in wrong)}"
    return judged("loss", consumer, wrong, "finite in every rank", evidence, wrong=said)


def seen_batch(ranks: Sequence[Rank], expected: int) -> Evidence:
    """What the ranks take together, beside the global batch that was tuned.

    Of a Trainer its arguments count, as in a trial: TRL's DPO makes two sequences of a sample.
    """
    taken = sum(_samples(rank) for rank in ranks if rank.steps)
    return Evidence(what="samples per step", expected=str(expected), seen=str(taken))


def _samples(rank: Rank) -> int:
    state = _state(rank)
    batch, accumulation = state.get("batch"), state.get("accumulation")
    if state.get("framework") == "trainer" and batch and accumulation:
        return int(batch) * int(accumulation)
    return rank.steps[0].samples


SHOWN_BY_KNOBS = frozenset(shown.what for knob in KNOBS for shown in knob.shown) | {"LD_PRELOAD"}
"""Variables that have checks of their own; of LD_PRELOAD counts what is mapped."""

CHANGES_A_PLAN = re.compile(
    r"(OMP|GOMP|TCMALLOC)_.*|KMP_(?!DUPLICATE_LIB_OK|INIT_AT_FORK).*|MALLOC_CONF|MKL_NUM_THREADS"
)
"""What no launch may add to its plan. scikit-learn sets the two KMP variables itself."""


def seen_environment(expected: Expected, ranks: Sequence[Rank]) -> Iterator[Evidence]:
    """Every promised variable as promised, and none beside them that would change the plan."""
    promised = expected.environment
    for rank in ranks:
        seen = _state(rank).get("environment")
        if promised is None or seen is None:
            continue
        added = {n for n in seen if is_cleared(n) and CHANGES_A_PLAN.fullmatch(n)} - set(promised)
        for name in sorted((set(promised) - SHOWN_BY_KNOBS) | added):
            wanted, shown = promised.get(name), seen.get(name)
            if wanted in ("true", "false") and shown is not None:
                shown = shown.lower()  # accelerate's launcher writes True, and reads both
            texts = [f"no {name}" if text is None else f"{name}={text}" for text in (wanted, shown)]
            yield Evidence(what=name, rank=rank.number, expected=texts[0], seen=texts[1])


def seen_lengths(expected: Expected, ranks: Sequence[Rank]) -> Iterator[Evidence]:
    """How many tokens a sample has in each rank that shows it, where that is promised."""
    wanted = expected.sequence_length
    for rank in ranks:
        length = _state(rank).get("sequence_length")
        if wanted is not None and length is not None:
            texts = {"expected": f"{wanted} tokens", "seen": f"{length} tokens"}
            yield Evidence(what="tokens of a sample", rank=rank.number, **texts)


def seen_interpreter(wanted: str | None, ranks: Sequence[Rank]) -> Iterator[Evidence]:
    """Which interpreter each rank ran in; ``wanted`` is a path, None where any will do.

    An environment has its python under several names (torchrun's first line has another).
    """
    for rank in ranks:
        seen = _state(rank).get("executable")
        if seen is None:
            continue
        same = wanted is None or (
            os.path.dirname(wanted) == os.path.dirname(seen)
            and os.path.realpath(wanted) == os.path.realpath(seen)
        )
        yield Evidence(
            what="interpreter", rank=rank.number, expected=seen if same else wanted, seen=seen
        )


def _state(rank: Rank) -> RankState:
    return rank.state if rank.state is not None else {}


WARMUP_STEPS = 2
LEAST_QUIET = 5
"""With fewer steps that did not wait for a CPU, all steps count."""

SLOWEST_RATIO = 0.9
"""A launch at this share of the tuned throughput reproduces it; one whose whole interval lies
below it does not. Between them the machine was too noisy to tell."""


def step_rates(steps: Sequence[Step]) -> tuple[list[float], int]:
    """Samples per second of each step of the whole job, and how many steps were delayed.

    Warm-up is left out, and so are steps that waited for a CPU; where nearly every step
    did, all of them count: a figure of a busy machine is better than none.
    """
    timed = [step for step in steps[min(WARMUP_STEPS, len(steps) - 1) :] if step.seconds > 0]
    quiet = [step for step in timed if not step.delayed]
    counted = quiet if len(quiet) >= LEAST_QUIET else timed
    return [step.samples / step.seconds for step in counted], len(timed) - len(quiet)


def throughput(steps: Sequence[Step], tuned: Throughput) -> Ratio | None:
    """The launch's samples per second over the tuned ones, None where there were no steps.

    The interval of a median is that of its order statistics; that of the ratio follows
    from both intervals (MOVER: Donner and Zou, Statistical Methods in Medical Research
    2012, 21(4), on logarithms).
    """
    rates, delayed = step_rates(steps)
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


def throughput_check(ratio: Ratio | None, consumer: str) -> Outcome:
    """Whether the launch is as fast as the tuned trial was.

    A slow one on a machine that was busy meanwhile says nothing of the launch.
    """
    name = "throughput"
    if ratio is None:
        remedy = "cputune tune measures; `cputune emit` writes its figure down"
        return not_checked(name, "nothing was measured to compare with", remedy, consumer)
    text = (
        f"{figure(ratio.measured, 4)} samples/s, {ratio.ratio:.2f} × the tuned "
        f"{ratio.tuned:.4g} ({ratio.low:.2f} to {ratio.high:.2f}, {ratio.steps} steps)"
    )
    if ratio.ratio >= SLOWEST_RATIO:
        return judged(name, consumer, (), text)
    busy = ratio.delayed_steps >= ratio.steps / 2
    if ratio.high < SLOWEST_RATIO and not busy:
        return Outcome(name=name, state=FAILED, summary=text, consumer=consumer)
    why = f"{ratio.delayed_steps} steps waited for a CPU" if busy else "too noisy to tell"
    remedy = "verify again when nothing else runs here, with more --steps"
    return not_checked(name, f"{text}; {why}", remedy, consumer)
