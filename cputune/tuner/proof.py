"""Whether each lever of this machine trains the same as the launch as typed, lever by lever.

The model of the launch as typed is asked about its own batches; then each lever is started by
itself, in processes of its own, and what its ranks train in their first steps is held against the
launch as typed. Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from cputune.host.facts import HostFacts
from cputune.inside.asking import QUESTIONS
from cputune.inside.first_steps import LOOKED_AT
from cputune.plans.equivalence import Licence, Training, equivalent
from cputune.plans.knobs import KNOBS, kept_between
from cputune.plans.knobs.record import KEPT, Keeps, Knob, KnobValue, LeftOut, in_words
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import TrialError
from cputune.tuner.space import SearchSpace, search_space

SAME, SAID, OTHER, LEFT = "the same", "the same but for", "not the same", "as typed"
"""How a lever comes out; ``LEFT``: it is not in the space, for the reason."""

_QUESTION_OF = {
    "ranks": "ranks",
    "accumulation": "ranks",
    "padding": "padding",
    "threads": "threads",
    "precision": "precision",
}
"""What the model was asked of a lever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """What one lever makes of the training.

    Attributes:
        lever: a knob and its value.
        verdict: one of those above.
        keeps: what of the training it claims to leave the same; None where it was not tried.
        deviation: the largest relative difference of loss or gradient that was seen; None: none.
        why: what agrees, or what does not.
    """

    lever: str
    verdict: str
    keeps: Keeps | None = None
    deviation: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """All levers of a command, and what its model has answered.

    Attributes:
        typed: what the launch as typed trains; None where it has not told.
        licence: the answers.
        levers: in the order in which they were tried.
    """

    typed: Training | None
    licence: Licence
    levers: tuple[Proven, ...]


def prove(
    job: Workload,
    facts: HostFacts,
    *,
    on_note: Callable[[str], None] = lambda text: None,
    on_proven: Callable[[Proven], None] = lambda proven: None,
) -> Proof:
    """Ask the model, and try each lever by itself. Raises TrialError where nothing trains."""
    found: list[Proven] = []
    with ProcessRunner(job, facts, on_note=on_note) as runner:
        for _ in islice(runner.steps(runner.today_as_typed), LOOKED_AT):
            pass
        runner.ask(QUESTIONS)
        workload = runner.workload
        space = search_space(facts, workload, baseline=runner.today, allow_slow_precision=True)
        for proven in (*_tried(runner, workload, space), *_left_out(space.left_out)):
            found.append(proven)
            on_proven(proven)
    licence = workload.licence or Licence()
    return Proof(typed=workload.training, licence=licence, levers=tuple(found))


def _tried(runner: ProcessRunner, workload: Workload, space: SearchSpace) -> Iterator[Proven]:
    """Each lever started by itself, beside the plan that has no other."""
    base = _plain(space)
    if base is None:
        return
    yield _held(runner, workload, "bound to its cores", base, None)
    for knob, value, plan in _alone(space, base):
        yield _held(runner, workload, f"{knob.name}={in_words(value)}", plan, knob)


def _plain(space: SearchSpace) -> Plan | None:
    """The plan of the space that has the most of today's launch: its ranks, on all cores."""
    ranks = space.workload.launch_ranks
    same = [plan for plan in space.plans() if plan.world_size == ranks] or list(space.plans())

    def unlike(plan: Plan) -> tuple[int, int]:
        values = space.values[plan]
        changed = sum(
            values[k.name] != space.baseline.value(k.name) for k in KNOBS if k.put is not None
        )
        return changed, -plan.threads_per_process

    return min(same, key=unlike, default=None)


def _alone(space: SearchSpace, base: Plan) -> Iterator[tuple[Knob, KnobValue, Plan]]:
    """The plans that differ from this one by one lever, the first of each value."""
    own = space.values[base]
    seen: set[tuple[str, KnobValue]] = set()
    for plan, values in space.values.items():
        changed = {name for name in values if values[name] != own[name]}
        changed -= {"threads"} if "ranks" in changed else set()
        if len(changed) != 1:
            continue
        (name,) = changed
        if (name, values[name]) not in seen:
            seen.add((name, values[name]))
            yield next(knob for knob in KNOBS if knob.name == name), values[name], plan


def _held(
    runner: ProcessRunner, workload: Workload, lever: str, plan: Plan, knob: Knob | None
) -> Proven:
    """What a plan trains in its first steps, held against the launch as typed."""
    keeps = kept_between(runner.today, plan) if knob is None else knob.keeps
    question = _QUESTION_OF.get("" if knob is None else knob.name, "")
    licence = workload.licence or Licence()
    asked = licence.largest(question)
    try:
        for _ in islice(runner.steps(plan), LOOKED_AT):
            pass
    except TrialError as error:
        why = str(error).splitlines()[0]
        return Proven(lever=lever, verdict=OTHER, keeps=keeps, deviation=asked, why=why)
    typed, seen = workload.training, runner.training
    if typed is None or seen is None:
        why = "its ranks do not report what they train"
        return Proven(lever=lever, verdict=OTHER, keeps=keeps, deviation=asked, why=why)
    held = equivalent(typed, seen, licence)
    deviations = [deviation for deviation in (asked, held.deviation) if deviation is not None]
    verdict, why = SAME, held.summary
    if held.differs:
        verdict, why = OTHER, "; ".join(held.differs)
    elif held.said or keeps in ("distribution", "nothing"):
        verdict, why = SAID, "; ".join((*held.said, *_claims(keeps), held.summary))
    return Proven(
        lever=lever,
        verdict=verdict,
        keeps=keeps,
        deviation=max(deviations, default=None),
        why=why,
    )


def _claims(keeps: Keeps) -> tuple[str, ...]:
    return (KEPT[keeps],) if keeps in ("distribution", "nothing") else ()


def _left_out(left_out: tuple[LeftOut, ...]) -> Iterator[Proven]:
    """The levers whose reason is the training itself."""
    of_training = ("ranks", "accumulation", "padding", "order", "workers")
    for out in left_out:
        if out.what.split("=")[0] in of_training:
            yield Proven(lever=out.what, verdict=LEFT, why=out.why)
