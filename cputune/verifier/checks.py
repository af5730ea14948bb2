"""Compares reports of ranks with the plan and the promises of a launch. Pure."""

from __future__ import annotations

import math
import os
import re
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from cputune.emitters.promise import PromisedTraining
from cputune.emitters.training_claims import BESIDE
from cputune.host.files import real_path
from cputune.inside.first_steps import LOOKED_AT
from cputune.inside.messages import NOT_HEARD, RankState
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
    NOT_CHECKED,
    Evidence,
    Expected,
    Outcome,
    Ratio,
    judged,
    not_checked,
)

# How an emitted script reports what is missing on this machine, before it starts a rank.
REFUSAL = re.compile(r"^error: (.+)\nhint: (.+)$", re.MULTILINE)

# The reports of ranks, with their global numbers.
States = Sequence[tuple[int, RankState]]


def outcomes(
    launched: Launched,
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
    yield started(launched, expected, consumer)
    states = []
    for rank in launched.ranks:
        if rank.state is not None:
            states.append((rank.number, rank.state))
    if not states:
        return
    for check, compared in _rows(expected, states, interpreter, dealt_out=dealt_out).items():
        yield rows_check(check, compared, consumer)
    if expected.plan.nodes > 1:
        yield spread(expected.plan, states, consumer)
    if expected.global_batch_size is not None:
        yield global_batch(launched.ranks, expected.global_batch_size, consumer)
    yield loss(launched.ranks, consumer)
    if expected.training is not None and launched.training is not None:
        recipe = expected.sequence_length is not None
        verdict = equivalent(expected.training, launched.training, other_data=recipe)
        differs = []
        for sentence in verdict.differs:
            differs.append(Evidence(what="training", seen=sentence))
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
        rows["affinity"] = list(exclusive_affinity(expected.plan, states))
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
    difference = None
    if wrong:
        difference = f"{wrong[0].what}: {wrong[0].seen}, promised {wrong[0].expected}"
    return judged("what is trained", consumer, wrong, good, rows, wrong=difference)


def words_differ(promised: Sequence[str], shown: Sequence[str]) -> Iterator[Evidence]:
    """How the command of a rank differs from the promised one; ``${NAME}`` is any word."""
    if not (promised and shown):
        return
    shown_words = _as_promised(promised, shown)
    same = SequenceMatcher(None, promised, shown_words, autojunk=False)
    for kind, begin, end, other, last in same.get_opcodes():
        if kind != "equal":
            lead = ""
            if begin:
                lead = f" after {promised[begin - 1]}"
            yield Evidence(
                what=f"the command{lead}",
                expected=shlex.join(promised[begin:end]) or "nothing",
                seen=shlex.join(shown_words[other:last]) or "nothing",
            )


def _as_promised(promised: Sequence[str], shown: Sequence[str]) -> list[str]:
    """The command of a rank from its script on, with the promised words for those that mean the
    same: the script, a file next to the launch, a secret.
    """
    first = os.path.basename(promised[0])
    begins = None
    for number, word in enumerate(shown):
        if os.path.basename(word) == first:
            begins = number
    is_named = begins is not None
    if begins is None:
        begins = next((n for n, word in enumerate(shown) if word.endswith(".py")), 1)
    hidden, _ = hide_arguments(("python", *shown[begins:]))
    shown_words = list(hidden[1:])
    if is_named:
        shown_words[0] = promised[0]
    for number, word in enumerate(promised[: len(shown_words)]):
        shown_word = shown_words[number]
        in_folder = word.startswith(BESIDE)
        if in_folder and os.path.basename(shown_word) == os.path.basename(word):
            shown_words[number] = word
        secret = _SECRET.search(word)
        if secret is not None and shown_word.startswith(word[: secret.start()]):
            shown_words[number] = word
    return shown_words


_SECRET = re.compile(r"\$\{\w+\}$")


def _row(what: str, rank: int, expected: str, seen: str) -> Compared:
    return Compared(what=what, rank=rank, expected=expected, seen=seen, by_cpu_number=False)


def rows_check(name: str, rows: Sequence[Compared], consumer: str) -> Outcome:
    """A check that fails with the first row that differs."""
    evidence: list[Evidence] = []
    wrong: list[Evidence] = []
    for row in rows:
        shown_text = row.seen or "not shown"
        evidence.append(
            Evidence(what=row.what, rank=row.rank, expected=row.expected, seen=shown_text)
        )
        if row.differs:
            wrong.append(evidence[-1])
    if wrong:
        summary = f"rank {wrong[0].rank}: {wrong[0].seen}, the plan has {wrong[0].expected}"
        return judged(name, consumer, wrong, "", evidence, wrong=summary)
    unknown = next((row for row in rows if row.seen is None), None)
    if unknown is not None:
        reason = f"rank {unknown.rank}: not known: {unknown.unknown}"
        return not_checked(name, reason, consumer=consumer, evidence=evidence)
    by_rank: dict[int | None, list[str]] = {}
    for line in evidence:
        by_rank.setdefault(line.rank, []).append(line.seen)
    first, *others = by_rank.values()
    if any(other != first for other in others):
        summary = " | ".join(dict.fromkeys(line.seen for line in evidence))
    else:
        summary = f"{', '.join(first)} in every rank"
    return judged(name, consumer, (), summary, evidence)


def _shown_by_knobs() -> frozenset[str]:
    names = {"LD_PRELOAD"}
    for knob in KNOBS:
        names.update(shown.what for shown in knob.shown)
    return frozenset(names)


# Variables with separate checks; for LD_PRELOAD what is mapped counts.
SHOWN_BY_KNOBS = _shown_by_knobs()

# What a launch may not add to its plan. scikit-learn sets the two KMP variables itself.
CHANGES_A_PLAN = re.compile(
    r"(OMP|GOMP|TCMALLOC|MALLOC|OPENBLAS|DNNL|ONEDNN)_.*|KMP_(?!DUPLICATE_LIB_OK|INIT_AT_FORK).*"
    r"|MKL_(NUM_THREADS|DYNAMIC|DOMAIN_NUM_THREADS|ENABLE_INSTRUCTIONS|DEBUG_CPU_TYPE|CBWR)"
    r"|ATEN_CPU_CAPABILITY|GLIBC_TUNABLES|CCL_WORKER_.*|I_MPI_PIN_.*"
)


def _promised(
    expected: Expected, state: RankState, interpreter: str | None
) -> Iterator[tuple[str, str, str, str]]:
    """(check, what, promised, shown) of what is promised besides the plan, and a rank shows."""
    promised, variables = expected.environment, state.get("environment")
    if promised is not None and variables is not None:
        added = _added(variables, expected.outer) - set(promised)
        for name in sorted((set(promised) - SHOWN_BY_KNOBS) | added):
            wanted, shown = promised.get(name), variables.get(name)
            if wanted in ("true", "false") and shown is not None:
                shown = shown.lower()  # accelerate's launcher writes True, and reads both
            yield "environment", name, _assignment(name, wanted), _assignment(name, shown)
        if "preload" in state and not expected.plan.as_found:
            yield _preloaded(promised.get("LD_PRELOAD", ""), state["preload"])
    length, tokens = state.get("sequence_length"), expected.sequence_length
    if tokens is not None and length is not None:
        yield "workload", "tokens of a sample", f"{tokens} tokens", f"{length} tokens"
    python = state.get("executable")
    if python is not None:
        wanted = python
        if interpreter is not None and not _same_python(interpreter, python):
            wanted = interpreter
        yield "interpreter", "interpreter", wanted, python


def _added(variables: Mapping[str, str], outer: Mapping[str, str]) -> set[str]:
    """The variables that change a plan, except those that were so outside and are not cleared."""
    added = set()
    for name, value in variables.items():
        if CHANGES_A_PLAN.fullmatch(name) and (is_cleared(name) or outer.get(name) != value):
            added.add(name)
    return added


def _assignment(name: str, value: str | None) -> str:
    if value is None:
        return f"no {name}"
    return f"{name}={value}"


def _same_python(one: str, other: str) -> bool:
    """An environment has its python under several names (torchrun's first line has another)."""
    in_one_folder = os.path.dirname(one) == os.path.dirname(other)
    return in_one_folder and real_path(one) == real_path(other)


def _preloaded(promised: str, paths: Sequence[str]) -> tuple[str, str, str, str]:
    """What LD_PRELOAD has loaded, by the names of the files: no library besides the plan's."""
    planned = [os.path.basename(name) for name in re.split(r"[:\s]+", promised) if name]
    others = []
    for path in paths:
        name = os.path.basename(path)
        if not any(_same_library(name, one) for one in planned):
            others.append(name)
    wanted = "nothing else is preloaded"
    if others:
        shown = f"{', '.join(others)} is preloaded"
    else:
        shown = wanted
    return "environment", "LD_PRELOAD", wanted, shown


def _same_library(one: str, other: str) -> bool:
    """Whether two names are of one library: a link is libjemalloc.so.2, its file …so.2.0.1."""
    return one.partition(".so")[0] == other.partition(".so")[0]


def started(launched: Launched, expected: Expected, consumer: str) -> Outcome:
    """Whether every rank of the plan made its steps, and how the launch ended if not.

    A script that reports what is missing here was not checked, and did not fail.
    """
    steps, world = expected.steps, expected.plan.world_size
    evidence = []
    for rank in launched.ranks:
        made = str(len(rank.steps))
        if rank.trouble:
            made += f"; {rank.trouble}"
        evidence.append(
            Evidence(what="steps", rank=rank.number, expected=f"at least {steps}", seen=made)
        )
    if launched.enough:
        ranks = count(len(launched.ranks), "rank")
        good = f"{ranks} made {steps} steps in {launched.seconds:.0f} s"
        missing = len(launched.ranks) != world
        wrong = f"{ranks} ran, the plan has {world}"
        return judged("launch", consumer, evidence[:missing], good, evidence, wrong=wrong)
    refused = REFUSAL.search(launched.output)
    if refused is not None and not launched.ranks:
        reason = f"it cannot run here: {refused[1]}"
        return not_checked("launch", reason, refused[2], consumer)
    lines = [line for line in launched.output.splitlines() if line.strip()]
    for line in lines[-15:]:
        evidence.append(Evidence(what="output", seen=line[:400]))
    if launched.returncode == NOT_HEARD and not launched.ranks:
        return Outcome(
            name="launch",
            state=NOT_CHECKED,
            consumer=consumer,
            summary="its ranks could not report: the step of the job that copies their reports "
            "to cputune did not start, or has ended",
            evidence=tuple(evidence),
            remedy="see whether a step starts beside a job: srun --jobid=JOB --overlap hostname",
        )
    trained = sum(bool(rank.steps) for rank in launched.ranks)
    if 0 < trained < world:
        summary = (
            f"{count(trained, 'rank')} trained, the plan has {world}: {world - trained} missing"
        )
    elif launched.timed_out:
        summary = f"no {steps} steps within {launched.seconds:.0f} s"
    else:
        summary = f"it ended with {launched.returncode} before {steps} steps"
    if not launched.ranks:
        summary += ", and no rank trained"
    return judged(
        "launch", consumer, [Evidence(what="end", seen=summary)], "", evidence, wrong=summary
    )


def _by_node(plan: Plan, states: States) -> list[list[tuple[int, RankState]]]:
    nodes: dict[int, list[tuple[int, RankState]]] = {}
    for number, state in states:
        nodes.setdefault(number // plan.processes_per_node, []).append((number, state))
    return list(nodes.values())


def spread(plan: Plan, states: States, consumer: str) -> Outcome:
    """Whether every node of the plan was a separate machine, by the names of the machines.

    Machines with one name cannot be distinguished.
    """
    rows = []
    hosts_of: dict[int, set[str]] = {}
    for number, state in states:
        name = state.get("host", "not known")
        rows.append(Evidence(what="host", rank=number, seen=name))
        hosts_of.setdefault(number // plan.processes_per_node, set()).add(name)
    names = sorted({row.seen for row in rows})
    if len(names) == 1:
        reason = f"all ranks ran on {names[0]}; {plan.nodes} machines cannot be confirmed"
        return not_checked("hosts", reason, consumer=consumer, evidence=rows)
    good = len(names) == len(hosts_of) and all(len(hosts) == 1 for hosts in hosts_of.values())
    counted = [f"{sum(row.seen == name for row in rows)} on {name}" for name in names]
    summary = f"ranks: {', '.join(counted)}"
    return judged("hosts", consumer, () if good else rows, summary, rows, wrong=summary)


def exclusive_affinity(plan: Plan, states: States) -> Iterator[Compared]:
    """Whether every rank has as many CPUs as threads, and none of another rank of its node.

    For a scheduler that assigns CPUs by its own numbering.
    """
    for of_node in _by_node(plan, states):
        together: list[int] = []
        for _, state in of_node:
            together += state.get("affinity", ())
        for number, state in of_node:
            cpus = state.get("affinity", ())
            alone = all(together.count(cpu) == 1 for cpu in cpus)
            shown = cpulist.render(cpus) or "none"
            enough = alone and len(cpus) >= plan.threads_per_process
            if enough:
                wanted = shown
            else:
                wanted = f"{plan.threads_per_process} CPUs of its own"
            yield _row("affinity", number, wanted, shown)


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


WARMUP_STEPS = 2  # of each rank; they do not count
# With fewer steps that did not wait for a CPU, all steps count.
LEAST_QUIET = 5

# A launch at this share of the tuned throughput reproduces it; one whose whole interval is
# below it does not.
SLOWEST_RATIO = 0.9


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
        reason = "nothing was measured to compare with"
        return not_checked(name, reason, remedy, consumer, left_out=True)
    text = (
        f"{figure(ratio.measured, 4)} samples/s, {ratio.ratio:.2f} × the tuned "
        f"{ratio.tuned:.4g} ({ratio.low:.2f} to {ratio.high:.2f}, {ratio.steps} steps)"
    )
    if ratio.ratio >= SLOWEST_RATIO:
        return judged(name, consumer, (), text)
    busy = ratio.delayed_steps >= ratio.steps / 2
    if ratio.high < SLOWEST_RATIO and not busy:
        return Outcome(name=name, state=FAILED, summary=text, consumer=consumer)
    reason = "too noisy to tell"
    if busy:
        reason = f"{ratio.delayed_steps} steps waited for a CPU"
    remedy = "verify again when nothing else runs here, with more --steps"
    return not_checked(name, f"{text}; {reason}", remedy, consumer)
