"""What trials have shown not to work here, so that it is not tried in plan after plan.

A value is refused if the reason of a failed trial names it, or if it is the only difference of the
failed plan from a plan that ran. A value of a plan that ran is never refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cputune.plans.knobs import NAMES, knob_named
from cputune.plans.knobs.record import LeftOut
from cputune.plans.plan import Plan
from cputune.plans.values import KnobValue, as_text
from cputune.ranks.compare import Compared, refused_properties, shows_otherwise
from cputune.records.result import FAILED, Trial
from cputune.records.steps import Crashed, Diverged, Infeasible, TimedOut
from cputune.tuner.space import TOGETHER, SearchSpace

# Failures that the same plan would have again. The sampler handles memory.
_PLANS_FAULT = (Infeasible.kind, Crashed.kind, Diverged.kind, TimedOut.kind)

# Other ranks have other threads: to vary one is to vary both.
_LAYOUT = {"ranks", "threads"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A value that does not work here.

    Attributes:
        what: a knob and its value; only the knob if all values are meant except the one that
            ranks show.
        reason: the trial that showed it, and why it failed.
        meets: whether a plan has the value.
    """

    what: str
    reason: str
    meets: Callable[[Plan], bool]

    @property
    def left_out(self) -> LeftOut:
        """The refusal as a result lists it."""
        return LeftOut(what=self.what, why=self.reason)


def refusals(trials: Sequence[Trial], space: SearchSpace) -> tuple[Refusal, ...]:
    """What these trials have shown not to work, each value once."""
    ran = [trial.plan for trial in trials if trial.state != FAILED]
    by_value: dict[str, Refusal] = {}
    for trial in trials:
        if trial.plan not in space.values or trial.kind not in _PLANS_FAULT:
            continue
        blamed = list(_named(trial, space)) or list(_only_changes(trial, ran, space))
        for refusal in blamed:
            if not any(map(refusal.meets, ran)):
                by_value.setdefault(refusal.what, refusal)
    return tuple(by_value.values())


def _named(trial: Trial, space: SearchSpace) -> Iterator[Refusal]:
    """The values that the reason names: what ranks showed differently from the plan."""
    text = trial.reason or ""
    rows = refused_properties(trial.plan, trial.observed, text)
    first_rows: dict[str, Compared] = {}
    for row in reversed(rows):
        first_rows[row.what] = row
    for row in first_rows.values():
        reason = f"trial {trial.number}: {_part(text, row)}"
        if knob_named(row.knob).put is None:
            # These ranks show the same with every plan: other values would fail alike.
            meets = partial(shows_otherwise, row.what, trial.observed)
            yield Refusal(what=row.knob, reason=reason, meets=meets)
            continue
        value = space.values[trial.plan][row.knob]
        several = all(other.rank > 0 for other in rows if other.what == row.what)
        what = f"{row.knob}={as_text(value)}"
        if several:
            what = f"{what} of several ranks"
        yield Refusal(
            what=what,
            reason=reason,
            meets=partial(_has, space, row.knob, value, several),
        )


def _part(reason: str, row: Compared) -> str:
    parts = reason.split("\n")[0].split("; ")
    return next(part for part in parts if part.startswith((f"{row.what}:", f"{row.what} of rank")))


def _only_changes(trial: Trial, ran: Sequence[Plan], space: SearchSpace) -> Iterator[Refusal]:
    """The values that are the only difference of a failed plan from a plan that ran."""
    values = values_of(trial.plan, space)
    reason = f"trial {trial.number}: {(trial.reason or 'it failed').splitlines()[0]}"
    for plan in ran:
        other = values_of(plan, space)
        changed = {name for name in NAMES if values[name] != other[name]}
        if "ranks" in changed:
            changed -= _LAYOUT - {"ranks"}
        if changed == TOGETHER:
            changed = {"backend"}
        if len(changed) != 1:
            continue
        (name,) = changed
        if name == "ranks" and plan.world_size == 1 and trial.kind == Infeasible.kind:
            # What refuses to be divided is not divided over another number of ranks either.
            yield Refusal(
                what="several ranks", reason=reason, meets=lambda plan: plan.world_size > 1
            )
            return
        what = f"{name}={as_text(values[name])}"
        meets = partial(_has, space, name, values[name], False)
        yield Refusal(what=what, reason=reason, meets=meets)


def _has(space: SearchSpace, name: str, value: KnobValue, several: bool, plan: Plan) -> bool:
    return values_of(plan, space)[name] == value and (plan.world_size > 1 or not several)


def values_of(plan: Plan, space: SearchSpace) -> Mapping[str, KnobValue]:
    """The value of every knob in a plan; also for the baseline, which is not in the space."""
    if plan in space.values:
        return space.values[plan]
    values = {name: plan.value(name) for name in NAMES}
    values["ranks"] = plan.processes_per_node
    values["threads"] = plan.threads_per_process
    values["smt"] = False
    return values
