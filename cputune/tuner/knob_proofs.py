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
from cputune.plans.knobs import KNOBS, kept_between
from cputune.plans.knobs.record import KEPT, Keeps, Knob, KnobValue, LeftOut, as_text
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import TimeUp, TrialError
from cputune.tuner.space import SearchSpace, search_space

SAME, SAID, OTHER, LEFT = "the same", "the same but for", "not the same", "as typed"
UNTRIED = "not checked"
"""How a value comes out. ``LEFT``: it is not in the space. ``UNTRIED``: no time was left."""

TOGETHER = ("numbers", "mathematics")
"""What values that are started together promise. Others change draws or numbers, each its own."""

BOUND = "bound to its cores"

CHECKS_BEFORE = 2
"""Checks of the current launch, before any value is tried."""

_QUESTION_OF = {
    "ranks": "ranks",
    "accumulation": "ranks",
    "padding": "padding",
    "threads": "threads",
    "precision": "precision",
}
"""The question to the model that belongs to a knob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """How one knob value changes the training.

    Attributes:
        lever: a knob and its value.
        keeps: what of the training it claims to keep; None if it was not tried.
        deviation: the largest relative difference of loss or gradient; None: none.
        why: what agrees, or what does not.
    """

    lever: str
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
    levers: tuple[Proven, ...]


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
    found: list[Proven] = []
    if max_time_seconds is None:
        until = math.inf
    else:
        until = time.monotonic() + max_time_seconds

    def left() -> float:
        on_wait()
        return until - time.monotonic()

    def tell(proven: Proven) -> None:
        found.append(proven)
        on_proven(proven)

    with ProcessRunner(job, facts, on_note=on_note) as runner:
        runner.keep_to(left)
        on_note("check 1: the command as typed")
        for _ in islice(runner.steps(runner.today_as_typed), LOOKED_AT):
            pass
        on_note("check 2: its model, data set and collator; and a second start")
        runner.ask(QUESTIONS)
        workload = runner.workload
        space = search_space(facts, workload, baseline=runner.today, allow_slow_precision=True)
        _try_all(runner, workload, space, tell, on_note)
        for proven in _left_out(space.left_out):
            tell(proven)
    model_answers = workload.licence or ModelAnswers()
    return Proof(typed=workload.training, model_answers=model_answers, levers=tuple(found))


def _try_all(
    runner: ProcessRunner,
    workload: Workload,
    space: SearchSpace,
    tell: Callable[[Proven], None],
    on_note: Callable[[str], None],
) -> None:
    """Start one check after the other; what is the same together is the same each alone."""
    waiting = list(checks_of(space))
    done = CHECKS_BEFORE
    total = done + len(waiting)
    while waiting:
        check = waiting.pop(0)
        done += 1
        on_note(f"check {done} of {total}: {', '.join(map(_name, check.levers))}")
        try:
            proven = list(_held(runner, workload, check))
        except TimeUp:
            for left in (check, *waiting):
                for lever in left.levers:
                    tell(
                        Proven(
                            lever=_name(lever), verdict=UNTRIED, why="the time limit was reached"
                        )
                    )
            return
        if len(check.levers) > 1 and any(lever.verdict != SAME for lever in proven):
            waiting[:0] = [Check(levers=(lever,), plan=plan) for lever, plan in check.alone]
            total += len(check.alone)
            continue
        for one in proven:
            tell(one)


Lever = tuple[Knob | None, KnobValue]
"""A knob and its value; no knob: the plan itself, bound to its cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A plan that is started once, and the values by which it differs.

    ``alone``: for each of them the plan that has no other.
    """

    levers: tuple[Lever, ...]
    plan: Plan
    alone: tuple[tuple[Lever, Plan], ...] = ()


def checks_of(space: SearchSpace) -> Iterator[Check]:
    """The fewest starts that contain all values: those together that promise the same.

    Each number of ranks is its own start, and so is what changes numbers or draws.
    """
    counts = dict.fromkeys(plan.world_size for plan in space.plans())
    typed = space.workload.launch_ranks
    base = _plain(space, typed if typed in counts else next(iter(counts), typed))
    if base is None:
        return
    alone: list[tuple[Lever, Plan]] = [((None, ""), base), *_alone(space, base)]
    yield from _together(space, base, alone)
    known = {_name(lever) for lever, _ in alone}
    knob = next(knob for knob in KNOBS if knob.name == "ranks")
    for count in counts:
        other = _plain(space, count)
        if count == base.world_size or other is None:
            continue
        yield Check(levers=((knob, space.values[other]["ranks"]),), plan=other)
        of_ranks = [
            (lever, plan)
            for lever, plan in _alone(space, other)
            if lever[0] is not knob
            and _name(lever) not in known
            and lever[0] is not None
            and lever[0].name != "threads"
        ]
        known |= {_name(lever) for lever, _ in of_ranks}
        yield from _together(space, other, of_ranks)


def _together(
    space: SearchSpace, base: Plan, alone: Sequence[tuple[Lever, Plan]]
) -> Iterator[Check]:
    """Starts that contain these values, each with as many as a plan of the space has."""
    waiting: dict[str, tuple[Lever, Plan]] = {}
    for lever, plan in alone:
        if lever[0] is None or lever[0].keeps in TOGETHER:
            waiting[_name(lever)] = lever, plan
        else:
            yield Check(levers=(lever,), plan=plan)
    changed = {plan: _changed(space, base, plan) for plan in space.plans()}
    while waiting:
        every = {name for name, (lever, _) in waiting.items() if lever[0] is None}
        held, best = every, base
        for plan, names in changed.items():
            covered = every | (names & waiting.keys())
            if names <= {_name(lever) for lever, _ in alone} and len(covered) > len(held):
                held, best = covered, plan
        if not held:
            return
        pairs = tuple(waiting.pop(name) for name in [*waiting] if name in held)
        yield Check(levers=tuple(lever for lever, _ in pairs), plan=best, alone=pairs)


def _changed(space: SearchSpace, base: Plan, plan: Plan) -> frozenset[str]:
    """The values by which two plans differ."""
    own, values = space.values[base], space.values[plan]
    return frozenset(
        f"{name}={as_text(values[name])}" for name in values if values[name] != own[name]
    )


def _name(lever: Lever) -> str:
    knob, value = lever
    if knob is None:
        return BOUND
    return f"{knob.name}={as_text(value)}"


def _plain(space: SearchSpace, ranks: int) -> Plan | None:
    """The plan with this number of ranks, on all cores, that is nearest to the current launch."""
    same = [plan for plan in space.plans() if plan.world_size == ranks]

    def unlike(plan: Plan) -> tuple[int, int]:
        values = space.values[plan]
        changed = sum(
            values[k.name] != space.baseline.value(k.name) for k in KNOBS if k.put is not None
        )
        return changed, -plan.threads_per_process

    return min(same, key=unlike, default=None)


def _alone(space: SearchSpace, base: Plan) -> Iterator[tuple[Lever, Plan]]:
    """The plans with this number of ranks that differ by one value, the first of each value."""
    own = space.values[base]
    seen: set[tuple[str, KnobValue]] = set()
    for plan, values in space.values.items():
        changed = {name for name in values if values[name] != own[name]}
        if len(changed) != 1 or plan.world_size != base.world_size:
            continue
        (name,) = changed
        if (name, values[name]) not in seen:
            seen.add((name, values[name]))
            yield (next(knob for knob in KNOBS if knob.name == name), values[name]), plan


def _held(runner: ProcessRunner, workload: Workload, check: Check) -> Iterator[Proven]:
    """What a plan trains in its first steps, compared with the current launch. Raises TimeUp."""
    failed = ""
    try:
        for _ in islice(runner.steps(check.plan), LOOKED_AT):
            pass
    except TrialError as error:
        failed = str(error).splitlines()[0]
    for lever in check.levers:
        yield _proven(runner, workload, check.plan, lever, failed)


def _proven(
    runner: ProcessRunner, workload: Workload, plan: Plan, lever: Lever, failed: str
) -> Proven:
    knob, name = lever[0], _name(lever)
    if knob is None:
        keeps = kept_between(runner.today, plan)
    else:
        keeps = knob.keeps
    question = _QUESTION_OF.get("" if knob is None else knob.name, "")
    model_answers = workload.licence or ModelAnswers()
    asked = model_answers.largest(question)
    typed, seen = workload.training, runner.training
    if not failed and (typed is None or seen is None):
        failed = "its ranks do not report what they train"
    if failed or typed is None or seen is None:
        return Proven(lever=name, verdict=OTHER, keeps=keeps, deviation=asked, why=failed)
    held = equivalent(typed, seen, model_answers)
    deviations = []
    for deviation in (asked, held.deviation):
        if deviation is not None:
            deviations.append(deviation)
    verdict, why = SAME, held.summary
    if held.differs:
        verdict, why = OTHER, "; ".join(held.differs)
    elif held.said or keeps in ("distribution", "nothing"):
        verdict, why = SAID, "; ".join((*held.said, *_claims(keeps), held.summary))
    return Proven(
        lever=name,
        verdict=verdict,
        keeps=keeps,
        deviation=max(deviations, default=None),
        why=why,
    )


def _claims(keeps: Keeps) -> tuple[str, ...]:
    if keeps in ("distribution", "nothing"):
        return (KEPT[keeps],)
    return ()


def _left_out(left_out: tuple[LeftOut, ...]) -> Iterator[Proven]:
    """The values that are left out because of the training itself."""
    of_training = ("ranks", "accumulation", "padding", "order", "workers")
    for out in left_out:
        if out.what.split("=")[0] in of_training:
            yield Proven(lever=out.what, verdict=LEFT, why=out.why)
