"""Compares reports of ranks with the plan and the promises of a launch. Pure."""

from __future__ import annotations

import math
import os
import re
import shlex
import statistics
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from cputune.emitters.promise import PromisedTraining
from cputune.emitters.training_claims import BESIDE
from cputune.host.files import real_path
from cputune.inside.first_steps import LOOKED_AT
from cputune.inside.messages import RankState
from cputune.plans.delivery.environment import is_cleared
from cputune.plans.equivalence import equivalent
from cputune.plans.knobs import KNOBS
from cputune.plans.plan import Plan
from cputune.ranks.compare import Compared, compare
from cputune.ranks.job import Launched, Rank
from cputune.records.result import Throughput
from cputune.records.steps import Step
from cputune.text import cpulist
from cputune.text.hidden import hide_arguments
from cputune.text.plain import count, figure
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
"""How an emitted script reports what is missing on this machine, before it starts a rank."""

States = Sequence[tuple[int, RankState]]
"""The reports of ranks, with their global numbers."""


def outcomes(
    seen: Launched,
    expected: Expected,
    consumer: str,
    interpreter: str | None = None,
    *,
    dealt_out: bool = False,
) -> Iterator[Outcome]:
    """The checks of one launch: that it ran, and in every rank what the plan says.

    ``interpreter`` is the required one; None if any will do. ``dealt_out``: a scheduler assigned
    the CPUs; else they are those of the plan.
    """
    yield started(seen, expected, consumer)
    states = []
    for rank in seen.ranks:
        if rank.state is not None:
            states.append((rank.number, rank.state))
    if not states:
        return
    for check, compared in _rows(expected, states, interpreter, dealt_out=dealt_out).items():
        yield held(check, compared, consumer)
    if expected.plan.nodes > 1:
        yield spread(expected.plan, states, consumer)
    if expected.global_batch_size is not None:
        yield global_batch(seen.ranks, expected.global_batch_size, consumer)
    yield loss(seen.ranks, consumer)
    if expected.training is not None and seen.training is not None:
        recipe = expected.sequence_length is not None
        verdict = equivalent(expected.training, seen.training, other_data=recipe)
        differs = [Evidence(what="training", seen=sentence) for sentence in verdict.differs]
        good = f"{verdict.summary}; compared in the first {LOOKED_AT} updates"
        yield judged("first updates", consumer, differs, good)
    if expected.trained is not None:
        yield what_is_trained(expected.trained, expected.plan, states[0][1], consumer)


def _rows(
    expected: Expected, states: States, interpreter: str | None, *, dealt_out: bool
) -> dict[str, list[Compared]]:
    """What each rank shows and what it should, by the name of the check."""
    rows: dict[str, list[Compared]] = {}
    for row in compare(expected.plan, states):
        if not (dealt_out and row.by_cpu_number):
            rows.setdefault(row.what, []).append(row)
    if dealt_out:
        rows["affinity"] = list(own_affinity(expected.plan, states))
    for number, state in states:
        for check, what, wanted, shown in _promised(expected, state, interpreter):
            rows.setdefault(check, []).append(_row(what, number, wanted, shown))
    return rows


def what_is_trained(
    promised: PromisedTraining, plan: Plan, shown: RankState, consumer: str
) -> Outcome:
    """The command that a rank was started with, its model and its data set."""
    rows = list(words_differ(promised.words, shown.get("command", ())))
    model, samples = shown.get("model"), shown.get("dataset_samples")
    if None not in (promised.model, model) and not plan.ipex:  # IPEX lays weights out anew
        rows.append(Evidence(what="model", expected=promised.model, seen=str(model)))
    if None not in (promised.data, samples):
        wanted = f"{promised.data} samples"
        rows.append(Evidence(what="data set", expected=wanted, seen=f"{samples} samples"))
    wrong = [row for row in rows if row.seen != row.expected]
    good = "the command and its arguments are as emitted"
    differences = [f"{row.what}: {row.seen}, promised {row.expected}" for row in wrong[:1]]
    return judged(
        "what is trained", consumer, wrong, good, rows, wrong="".join(differences) or None
    )


def words_differ(promised: Sequence[str], shown: Sequence[str]) -> Iterator[Evidence]:
    """How the command of a rank differs from the promised one; ``${NAME}`` is any word."""
    if not (promised and shown):
        return
    first = os.path.basename(promised[0])
    starts = [n for n, word in enumerate(shown) if os.path.basename(word) == first]
    script = next((n for n, word in enumerate(shown) if word.endswith(".py")), 1)
    if starts:
        begins = starts[-1]
    else:
        begins = script
    own = [*hide_arguments(("python", *shown[begins:]))[0]][1:]
    if starts:
        own[0] = promised[0]
    for number, word in enumerate(promised[: len(own)]):
        if word.startswith(BESIDE) and os.path.basename(own[number]) == os.path.basename(word):
            own[number] = word
        if (said := _SECRET.search(word)) and own[number].startswith(word[: said.start()]):
            own[number] = word
    same = SequenceMatcher(None, promised, own, autojunk=False)
    for kind, begin, end, other, last in same.get_opcodes():
        if kind != "equal":
            lead = ""
            if begin:
                lead = f" after {promised[begin - 1]}"
            yield Evidence(
                what=f"the command{lead}",
                expected=shlex.join(promised[begin:end]) or "nothing",
                seen=shlex.join(own[other:last]) or "nothing",
            )


_SECRET = re.compile(r"\$\{\w+\}$")


def _row(what: str, rank: int, expected: str, seen: str) -> Compared:
    return Compared(what=what, rank=rank, expected=expected, seen=seen, by_cpu_number=False)


def held(name: str, rows: Sequence[Compared], consumer: str) -> Outcome:
    """A check that fails with the first row that differs."""
    evidence = [
        Evidence(what=row.what, rank=row.rank, expected=row.expected, seen=row.seen or "not shown")
        for row in rows
    ]
    wrong = [line for row, line in zip(rows, evidence, strict=True) if row.differs]
    if wrong:
        summary = f"rank {wrong[0].rank}: {wrong[0].seen}, the plan has {wrong[0].expected}"
        return judged(name, consumer, wrong, "", evidence, wrong=summary)
    unknown = next((row for row in rows if row.seen is None), None)
    if unknown is not None:
        why = f"rank {unknown.rank}: not known: {unknown.unknown}"
        return not_checked(name, why, consumer=consumer, evidence=evidence)
    shown: dict[int | None, list[str]] = {}
    for row in evidence:
        shown.setdefault(row.rank, []).append(row.seen)
    alike, *others = shown.values()
    text = f"{', '.join(alike)} in every rank"
    if any(other != alike for other in others):
        text = " | ".join(dict.fromkeys(row.seen for row in evidence))
    return judged(name, consumer, (), text, evidence)


SHOWN_BY_KNOBS = frozenset(shown.what for knob in KNOBS for shown in knob.shown) | {"LD_PRELOAD"}
"""Variables with separate checks; for LD_PRELOAD what is mapped counts."""

CHANGES_A_PLAN = re.compile(
    r"(OMP|GOMP|TCMALLOC|MALLOC|OPENBLAS|DNNL|ONEDNN)_.*|KMP_(?!DUPLICATE_LIB_OK|INIT_AT_FORK).*"
    r"|MKL_(NUM_THREADS|DYNAMIC|DOMAIN_NUM_THREADS|ENABLE_INSTRUCTIONS|DEBUG_CPU_TYPE|CBWR)"
    r"|ATEN_CPU_CAPABILITY|GLIBC_TUNABLES|CCL_WORKER_.*|I_MPI_PIN_.*"
)
"""What a launch may not add to its plan. scikit-learn sets the two KMP variables itself."""


def _promised(
    expected: Expected, state: RankState, interpreter: str | None
) -> Iterator[tuple[str, str, str, str]]:
    """(check, what, promised, shown) of what is promised besides the plan, and a rank shows."""
    promised, seen = expected.environment, state.get("environment")
    if promised is not None and seen is not None:
        added = {
            name
            for name, value in seen.items()
            if CHANGES_A_PLAN.fullmatch(name)
            and (is_cleared(name) or expected.outer.get(name) != value)
        } - set(promised)
        for name in sorted((set(promised) - SHOWN_BY_KNOBS) | added):
            wanted, shown = promised.get(name), seen.get(name)
            if wanted in ("true", "false") and shown is not None:
                shown = shown.lower()  # accelerate's launcher writes True, and reads both
            texts = [f"no {name}" if text is None else f"{name}={text}" for text in (wanted, shown)]
            yield "environment", name, texts[0], texts[1]
        if "preload" in state and not expected.plan.as_found:
            yield _preloaded(promised.get("LD_PRELOAD", ""), state["preload"])
    length, tokens = state.get("sequence_length"), expected.sequence_length
    if tokens is not None and length is not None:
        yield "workload", "tokens of a sample", f"{tokens} tokens", f"{length} tokens"
    python = state.get("executable")
    if python is not None:
        # An environment has its python under several names (torchrun's first line has another).
        same = interpreter is None or (
            os.path.dirname(interpreter) == os.path.dirname(python)
            and real_path(interpreter) == real_path(python)
        )
        yield "interpreter", "interpreter", python if same else str(interpreter), python


def _preloaded(promised: str, seen: Sequence[str]) -> tuple[str, str, str, str]:
    """What LD_PRELOAD has loaded, by the names of the files: no library besides the plan's."""
    own = [os.path.basename(name) for name in re.split(r"[:\s]+", promised) if name]
    names = [os.path.basename(path) for path in seen]
    others = [name for name in names if not any(_same_library(name, one) for one in own)]
    wanted = "nothing else is preloaded"
    if others:
        shown = f"{', '.join(others)} is preloaded"
    else:
        shown = wanted
    return "environment", "LD_PRELOAD", wanted, shown


def _same_library(one: str, other: str) -> bool:
    """Whether two names are of one library: a link is libjemalloc.so.2, its file …so.2.0.1."""
    return one.partition(".so")[0] == other.partition(".so")[0]


def started(seen: Launched, expected: Expected, consumer: str) -> Outcome:
    """Whether every rank of the plan made its steps, and how the launch ended if not.

    A script that reports what is missing here was not checked, and did not fail.
    """
    steps, world = expected.steps, expected.plan.world_size
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
        ranks = count(len(seen.ranks), "rank")
        good = f"{ranks} made {steps} steps in {seen.seconds:.0f} s"
        missing = len(seen.ranks) != world
        wrong = f"{ranks} ran, the plan has {world}"
        return judged("launch", consumer, evidence[:missing], good, evidence, wrong=wrong)
    refused = REFUSAL.search(seen.output)
    if refused is not None and not seen.ranks:
        why = f"it cannot run here: {refused[1]}"
        return not_checked("launch", why, refused[2], consumer)
    trained = sum(bool(rank.steps) for rank in seen.ranks)
    if 0 < trained < world:
        summary = (
            f"{count(trained, 'rank')} trained, the plan has {world}: {world - trained} missing"
        )
    elif seen.timed_out:
        summary = f"no {steps} steps within {seen.seconds:.0f} s"
    else:
        summary = f"it ended with {seen.returncode} before {steps} steps"
    if not seen.ranks:
        summary += ", and no rank trained"
    lines = [line for line in seen.output.splitlines() if line.strip()]
    evidence += [Evidence(what="output", seen=line[:400]) for line in lines[-15:]]
    return judged(
        "launch", consumer, [Evidence(what="end", seen=summary)], "", evidence, wrong=summary
    )


def _by_node(plan: Plan, states: States) -> list[States]:
    nodes = (number // plan.processes_per_node for number, _ in states)
    return [
        [state for state in states if state[0] // plan.processes_per_node == node]
        for node in dict.fromkeys(nodes)
    ]


def spread(plan: Plan, states: States, consumer: str) -> Outcome:
    """Whether every node of the plan was a separate machine, by the names of the machines.

    Machines with one name cannot be distinguished.
    """
    name_of = {number: state.get("host", "not known") for number, state in states}
    rows = [Evidence(what="host", rank=number, seen=name) for number, name in name_of.items()]
    nodes = []
    for of_node in _by_node(plan, states):
        nodes.append({name_of[number] for number, _ in of_node})
    names = sorted(set(name_of.values()))
    if len(names) == 1:
        why = f"all ranks ran on {names[0]}; {plan.nodes} machines cannot be confirmed"
        return not_checked("hosts", why, consumer=consumer, evidence=rows)
    good = len(names) == len(nodes) and all(len(seen) == 1 for seen in nodes)
    counted = [f"{sum(row.seen == name for row in rows)} on {name}" for name in names]
    summary = f"ranks: {', '.join(counted)}"
    return judged("hosts", consumer, () if good else rows, summary, rows, wrong=summary)


def own_affinity(plan: Plan, states: States) -> Iterator[Compared]:
    """Whether every rank has as many CPUs as threads, and none of another rank of its node.

    For a scheduler that assigns CPUs by its own numbering.
    """
    for of_node in _by_node(plan, states):
        together = [cpu for _, state in of_node for cpu in state.get("affinity", ())]
        for number, state in of_node:
            own = state.get("affinity", ())
            alone = all(together.count(cpu) == 1 for cpu in own)
            seen = cpulist.render(own) or "none"
            enough = alone and len(own) >= plan.threads_per_process
            if enough:
                wanted = seen
            else:
                wanted = f"{plan.threads_per_process} CPUs of its own"
            yield _row("affinity", number, wanted, seen)


def loss(ranks: Sequence[Rank], consumer: str) -> Outcome:
    """Whether every loss is a number, and training does not run away."""
    evidence, wrong = [], []
    for rank in ranks:
        values = []
        for step in rank.steps:
            if step.loss is not None:
                values.append(step.loss)
        if not values:
            continue
        text = f"{values[0]:.4g} at the first step, {values[-1]:.4g} at step {len(values)}"
        evidence.append(Evidence(what="loss", rank=rank.number, seen=text))
        if not all(map(math.isfinite, values)) or values[-1] > 10 * abs(values[0]) + 1:
            wrong.append(evidence[-1])
    if not evidence:
        return not_checked("loss", "the script does not report its loss", consumer=consumer)
    summary = f"runs away in rank {', '.join(str(row.rank) for row in wrong)}"
    return judged("loss", consumer, wrong, "finite in every rank", evidence, wrong=summary)


def global_batch(ranks: Sequence[Rank], expected: int, consumer: str) -> Outcome:
    """The batch of all ranks together, compared with the tuned global batch.

    For a Trainer its arguments count, as in a trial: TRL's DPO makes two sequences of a sample.
    """
    taken = 0
    for rank in ranks:
        state: RankState = rank.state or {}
        batch, accumulation = state.get("batch"), state.get("accumulation")
        if state.get("framework") == "trainer" and batch and accumulation:
            taken += int(batch) * int(accumulation)
        elif rank.steps:
            taken += rank.steps[0].samples
    row = Evidence(what="samples per step", expected=str(expected), seen=str(taken))
    wrong = f"{taken}, the plan has {expected}"
    if taken != expected:
        faults = [row]
    else:
        faults = []
    return judged("global batch", consumer, faults, str(taken), [row], wrong=wrong)


WARMUP_STEPS = 2
LEAST_QUIET = 5
"""With fewer steps that did not wait for a CPU, all steps count."""

SLOWEST_RATIO = 0.9
"""A launch at this share of the tuned throughput reproduces it; one whose whole interval is
below it does not.
"""


def step_rates(steps: Sequence[Step]) -> tuple[list[float], int]:
    """Samples per second of each step of the whole job, and how many steps were delayed.

    Warm-up and steps that waited for a CPU are left out; if nearly all steps waited, all count.
    """
    timed = [step for step in steps[min(WARMUP_STEPS, len(steps) - 1) :] if step.seconds > 0]
    quiet = [step for step in timed if not step.delayed]
    if len(quiet) >= LEAST_QUIET:
        counted = quiet
    else:
        counted = timed
    return [step.samples / step.seconds for step in counted], len(timed) - len(quiet)


def throughput(steps: Sequence[Step], tuned: Throughput) -> Ratio | None:
    """The launch's samples per second over the tuned ones, None if there were no steps.

    The interval of a median is that of its order statistics; that of the ratio follows from both
    intervals (MOVER: Donner and Zou, Statistical Methods in Medical Research 2012, 21(4), on
    logarithms).
    """
    rates, delayed = step_rates(steps)
    rates.sort()
    if not rates or min(tuned.low, tuned.centre) <= 0:
        return None
    low, high = median_interval(rates)
    measured = statistics.median(rates)
    ratio = measured / tuned.centre
    below = math.hypot(math.log(measured / low), math.log(tuned.high / tuned.centre))
    above = math.hypot(math.log(high / measured), math.log(tuned.centre / tuned.low))
    return Ratio(
        ratio=ratio,
        low=ratio * math.exp(-below),
        high=ratio * math.exp(above),
        measured=measured,
        tuned=tuned.centre,
        steps=len(rates),
        delayed_steps=delayed,
    )


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median from order statistics (binomial); below 6 values the range."""
    size = len(ordered)
    tail, rank = 0.5**size, 0
    while tail <= 0.025:
        rank += 1
        tail += math.comb(size, rank) * 0.5**size
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[size - 1 - rank]


def throughput_check(ratio: Ratio | None, consumer: str) -> Outcome:
    """Whether the launch is as fast as the tuned trial was.

    A slow one on a busy machine says nothing about the launch.
    """
    name = "throughput"
    if ratio is None:
        remedy = "tune first: `cputune emit` stores the measured speed in the file"
        why = "nothing was measured to compare with"
        return not_checked(name, why, remedy, consumer, left_out=True)
    text = (
        f"{figure(ratio.measured, 4)} samples/s, {ratio.ratio:.2f} × the tuned "
        f"{ratio.tuned:.4g} ({ratio.low:.2f} to {ratio.high:.2f}, {ratio.steps} steps)"
    )
    if ratio.ratio >= SLOWEST_RATIO:
        return judged(name, consumer, (), text)
    busy = ratio.delayed_steps >= ratio.steps / 2
    if ratio.high < SLOWEST_RATIO and not busy:
        return Outcome(name=name, state=FAILED, summary=text, consumer=consumer)
    why = "too noisy to tell"
    if busy:
        why = f"{ratio.delayed_steps} steps waited for a CPU"
    remedy = "verify again when nothing else runs here, with more --steps"
    return not_checked(name, f"{text}; {why}", remedy, consumer)
