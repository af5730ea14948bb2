"""Whether each knob value of this machine trains the same as your current launch.

The model of the current launch is checked on its own batches. Then values are started, those
together that promise the same numbers or the same mathematics, and what their ranks train in the
first steps is compared. If values are not the same together, each is started alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from cputune.host.facts import HostFacts
from cputune.inside.equivalence_check import QUESTIONS
from cputune.inside.first_steps import LOOKED_AT
from cputune.plans.equivalence import ModelAnswers, Training, equivalent
from cputune.plans.knobs import KNOBS, kept_between, knob_named
from cputune.plans.knobs.record import KEPT, Keeps, Knob, LeftOut
from cputune.plans.plan import Plan
from cputune.plans.values import KnobValue, as_text
from cputune.plans.workload import Workload
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import TimeUp, TrialError
from cputune.tuner.space import SearchSpace, search_space

SAME, NEARLY_SAME, OTHER, AS_TYPED = "the same", "the same but for", "not the same", "as typed"
# How a value comes out. ``AS_TYPED``: it is not in the space. ``UNTRIED``: no time was left.
UNTRIED = "not checked"

# What values that are started together promise. Others change draws or numbers, each its own.
TOGETHER = ("numbers", "mathematics")

BOUND = "bound to its cores"

# The time limit of a run of the whole script, shortened, with another number of ranks.
REHEARSAL_SECONDS = 300.0

# Checks of the current launch, before any value is tried.
CHECKS_BEFORE = 2

# The question to the model that belongs to a knob.
_QUESTION_OF = {
    "ranks": "ranks",
    "accumulation": "ranks",
    "padding": "padding",
    "threads": "threads",
    "precision": "precision",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """How one knob value changes the training.

    Attributes:
        knob: its name and value.
        keeps: what of the training it claims to keep; None if it was not tried.
        deviation: the largest relative difference of loss or gradient; None: none.
        why: what agrees, or what does not.
    """

    knob: str
    verdict: str
    keeps: Keeps | None = None
    deviation: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """All knob values of a command, in the order in which they were tried.

    Attributes:
        typed: what the current launch trains; None if it was not reported.
        model_answers: the answers of its model.
    """

    typed: Training | None
    model_answers: ModelAnswers
    knobs: tuple[Proven, ...]


def prove(
    job: Workload,
    facts: HostFacts,
    *,
    max_time_seconds: float | None = None,
    on_note: Callable[[str], None] = lambda text: None,
    on_proven: Callable[[Proven], None] = lambda proven: None,
    on_wait: Callable[[], None] = lambda: None,
) -> Proof:
    """Check the model, and try the values, as many as possible in one start.

    ``max_time_seconds``: values that are left then are ``UNTRIED``. ``on_wait`` is called between
    two waits, and may raise. Raises TrialError if nothing trains, TimeUp if the time is up before
    the command has trained.
    """
    results: list[Proven] = []
    if max_time_seconds is None:
        until = math.inf
    else:
        until = time.monotonic() + max_time_seconds

    def seconds_left() -> float:
        on_wait()
        return until - time.monotonic()

    def add(proven: Proven) -> None:
        results.append(proven)
        on_proven(proven)

    with ProcessRunner(job, facts, on_note=on_note) as runner:
        runner.keep_to(seconds_left)
        on_note("check 1: the command as typed")
        # In these steps ranks report what they train. Their speed is of no interest here.
        for _ in islice(runner.steps(runner.baseline_as_typed), LOOKED_AT):
            pass
        on_note("check 2: its model, data set and collator; and a second start")
        runner.check_model(QUESTIONS)
        workload = runner.workload
        space = search_space(facts, workload, baseline=runner.baseline, allow_slow_precision=True)
        _try_all(runner, workload, space, add, on_note)
        for proven in _left_out(space.left_out):
            add(proven)
    model_answers = workload.model_answers or ModelAnswers()
    return Proof(typed=workload.training, model_answers=model_answers, knobs=tuple(results))


def _try_all(
    runner: ProcessRunner,
    workload: Workload,
    space: SearchSpace,
    add: Callable[[Proven], None],
    on_note: Callable[[str], None],
) -> None:
    """Start one check after the other; what is the same together is the same each alone."""
    waiting = list(checks_of(space))
    done = CHECKS_BEFORE
    total = done + len(waiting)
    while waiting:
        check = waiting.pop(0)
        done += 1
        on_note(f"check {done} of {total}: {', '.join(map(_name, check.differences))}")
        try:
            results = list(_checked(runner, workload, check))
        except TimeUp:
            for untried in (check, *waiting):
                for difference in untried.differences:
                    name = _name(difference)
                    add(Proven(knob=name, verdict=UNTRIED, why="the time limit was reached"))
            return
        all_same = all(result.verdict == SAME for result in results)
        if len(check.differences) > 1 and not all_same:
            singles = []
            for difference, plan in check.alone:
                singles.append(Check(differences=(difference,), plan=plan))
            waiting = singles + waiting
            total += len(singles)
            continue
        for result in results:
            add(result)


# A knob and its value; no knob: the plan itself, bound to its cores.
Difference = tuple[Knob | None, KnobValue]

# A difference, and the plan that has no other.
PlanAlone = tuple[Difference, Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A plan that is started once, and the values by which it differs.

    ``alone``: for each of them the plan that has no other; empty if there is only one.
    """

    differences: tuple[Difference, ...]
    plan: Plan
    alone: tuple[PlanAlone, ...] = ()


def checks_of(space: SearchSpace) -> Iterator[Check]:
    """The fewest starts that contain all values: those together that promise the same.

    Each number of ranks is its own start, and so is what changes numbers or draws.
    """
    counts = dict.fromkeys(plan.world_size for plan in space.plans())
    ranks = space.workload.launch_ranks
    if ranks not in counts:
        ranks = next(iter(counts), ranks)
    base = _plain(space, ranks)
    if base is None:
        return
    alone: list[PlanAlone] = [((None, ""), base)]
    alone += _alone(space, base)
    yield from _together(space, base, alone)
    checked = {_name(difference) for difference, _ in alone}
    for count in counts:
        other = _plain(space, count)
        if count == base.world_size or other is None:
            continue
        yield Check(differences=((knob_named("ranks"), space.values[other]["ranks"]),), plan=other)
        of_ranks = []
        for difference, plan in _alone(space, other):
            knob = difference[0]
            if knob is None or knob.name in ("ranks", "threads"):
                continue
            if _name(difference) not in checked:
                of_ranks.append((difference, plan))
        checked |= {_name(difference) for difference, _ in of_ranks}
        yield from _together(space, other, of_ranks)


def _together(space: SearchSpace, base: Plan, alone: Sequence[PlanAlone]) -> Iterator[Check]:
    """Starts that contain these values, each with as many as a plan of the space has."""
    waiting: dict[str, PlanAlone] = {}
    in_every_plan = set()
    all_names = set()
    for difference, plan in alone:
        knob, name = difference[0], _name(difference)
        all_names.add(name)
        if knob is None or knob.keeps in TOGETHER:
            waiting[name] = difference, plan
        else:
            yield Check(differences=(difference,), plan=plan)
        if knob is None:
            in_every_plan.add(name)
    # Plans that differ by any other value are left out: what they train would show that too.
    changed: dict[Plan, frozenset[str]] = {}
    for plan in space.plans():
        names = _changed(space, base, plan)
        if names <= all_names:
            changed[plan] = names
    while waiting:
        every = in_every_plan & waiting.keys()
        most_covered, best = every, base
        for plan, names in changed.items():
            covered = every | (names & waiting.keys())
            if len(covered) > len(most_covered):
                most_covered, best = covered, plan
        if not most_covered:
            return
        covers = [waiting.pop(name) for name in list(waiting) if name in most_covered]
        differences = tuple(difference for difference, _ in covers)
        yield Check(differences=differences, plan=best, alone=tuple(covers))


def _changed(space: SearchSpace, base: Plan, plan: Plan) -> frozenset[str]:
    """The values by which two plans differ."""
    names = set()
    for name, value in space.values[plan].items():
        if value != space.values[base][name]:
            names.add(f"{name}={as_text(value)}")
    return frozenset(names)


def _name(difference: Difference) -> str:
    knob, value = difference
    if knob is None:
        return BOUND
    return f"{knob.name}={as_text(value)}"


def _plain(space: SearchSpace, ranks: int) -> Plan | None:
    """The plan with this number of ranks, on all cores, that is nearest to the current launch."""
    same = [plan for plan in space.plans() if plan.world_size == ranks]

    def unlike(plan: Plan) -> tuple[int, int]:
        changed = 0
        for knob in KNOBS:
            if knob.put is None:
                continue
            if space.values[plan][knob.name] != space.baseline.value(knob.name):
                changed += 1
        return changed, -plan.threads_per_process

    return min(same, key=unlike, default=None)


def _alone(space: SearchSpace, base: Plan) -> Iterator[PlanAlone]:
    """The plans with this number of ranks that differ by one value, the first of each value."""
    base_values = space.values[base]
    yielded: set[tuple[str, KnobValue]] = set()
    for plan, values in space.values.items():
        changed = [name for name in values if values[name] != base_values[name]]
        if len(changed) != 1 or plan.world_size != base.world_size:
            continue
        (name,) = changed
        if (name, values[name]) not in yielded:
            yielded.add((name, values[name]))
            yield (knob_named(name), values[name]), plan


def _checked(runner: ProcessRunner, workload: Workload, check: Check) -> Iterator[Proven]:
    """What a plan trains in its first steps, compared with the current launch. Raises TimeUp."""
    failed = ""
    try:
        for _ in islice(runner.steps(check.plan), LOOKED_AT):
            pass
        if any(knob is not None and knob.name == "ranks" for knob, _ in check.differences):
            end = runner.rehearse(check.plan, min(REHEARSAL_SECONDS, runner.seconds_left()))
            failed = "" if end is None else end.failed
    except TrialError as error:
        failed = str(error).splitlines()[0]
    for difference in check.differences:
        yield _proven(runner, workload, check.plan, difference, failed)


def _proven(
    runner: ProcessRunner, workload: Workload, plan: Plan, difference: Difference, failed: str
) -> Proven:
    knob, name = difference[0], _name(difference)
    if knob is None:
        keeps = kept_between(runner.baseline, plan)
        question = ""
    else:
        keeps = knob.keeps
        question = _QUESTION_OF.get(knob.name, "")
    model_answers = workload.model_answers or ModelAnswers()
    of_model = model_answers.largest(question)
    typed, tried = workload.training, runner.training
    if not failed and (typed is None or tried is None):
        failed = "its ranks do not report what they train"
    if failed or typed is None or tried is None:
        return Proven(knob=name, verdict=OTHER, keeps=keeps, deviation=of_model, why=failed)
    comparison = equivalent(typed, tried, model_answers)
    deviations = []
    for deviation in (of_model, comparison.deviation):
        if deviation is not None:
            deviations.append(deviation)
    reservations = list(comparison.allowed)
    if keeps in ("distribution", "nothing"):
        reservations.append(KEPT[keeps])
    verdict, reasons = SAME, [comparison.summary]
    if comparison.differs:
        verdict, reasons = OTHER, list(comparison.differs)
    elif reservations:
        verdict, reasons = NEARLY_SAME, [*reservations, comparison.summary]
    return Proven(
        knob=name,
        verdict=verdict,
        keeps=keeps,
        deviation=max(deviations, default=None),
        why="; ".join(reasons),
    )


def _left_out(left_out: tuple[LeftOut, ...]) -> Iterator[Proven]:
    """The values that are left out because of the training itself."""
    of_training = ("ranks", "accumulation", "padding", "order", "workers")
    for out in left_out:
        if out.what.split("=")[0] in of_training:
            yield Proven(knob=out.what, verdict=AS_TYPED, why=out.why)
