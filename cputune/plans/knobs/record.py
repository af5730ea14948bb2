"""The record of a knob: one thing about a launch that can be varied.

Plans are built from these records, so this module knows a plan only by its fields.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from cputune.errors import UsageError
from cputune.plans.plan import Plan
from cputune.plans.values import KnobValue, as_text

if TYPE_CHECKING:
    from cputune.host.facts import HostFacts
    from cputune.plans.workload import Workload
    from cputune.stack.uses import Framework

# Value of a field of TrainingArguments; None leaves it unset.
Argument = bool | int | str | None

# What a rank reports about itself, as ``cputune.inside.state`` reads it.
State = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A knob or value that is not in the space, and why; ``option`` of tune brings it in."""

    what: str
    why: str
    option: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The values that a knob can take here, the current one first, and why it cannot take
    others.
    """

    values: tuple[KnobValue, ...]
    left_out: tuple[LeftOut, ...] = ()


def unless(reason: str | None, what: str, *values: KnobValue) -> Choices:
    """All of these values; only the first, the current one, if there is a ``reason``."""
    if reason is None:
        return Choices(values=tuple(dict.fromkeys(values)))
    return Choices(values=values[:1], left_out=(LeftOut(what=what, why=reason),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What the user requests of the space, in addition to what the machine can do.

    Attributes:
        fixed: knobs that are held at a value.
        allow_slow_precision: offer bf16 although the CPU only emulates it.
        allow_bf16_gradients: offer to send gradients in bf16.
        owned: knobs that the script decides, at their current values; also in ``fixed``.
        hosts: names of the hosts that plans may use, in order; empty: only this machine.
        keep: how much of the training has to stay the same.
        named: knobs that the user named.
    """

    workload: Workload | None = None
    fixed: Mapping[str, KnobValue] = field(default_factory=dict)
    owned: Mapping[str, KnobValue] = field(default_factory=dict)
    hosts: tuple[tuple[str, HostFacts], ...] = ()
    allow_slow_precision: bool = False
    keep: Keeps | None = None
    named: frozenset[str] = frozenset()
    allow_bf16_gradients: bool = False

    def kept(self, name: str, values: Iterable[KnobValue]) -> tuple[KnobValue, ...]:
        """The requested values of a knob: all, or the one that it is held at."""
        if name not in self.fixed:
            return tuple(values)
        return tuple(value for value in values if value == self.fixed[name])

    @property
    def framework(self) -> Framework:
        """The framework whose rules apply; a script that has not run counts as a Trainer's."""
        framework = None
        if self.workload is not None:
            framework = self.workload.framework
        if framework in (None, "trainer"):
            return "trainer"
        return "accelerate"


# What stays the same in a training while a knob is varied, the most first.
#
# The same numbers (another allocator); the same mathematics, rounded or added differently (another
# number of ranks); the same distribution with other draws (other masks or batches); or other
# numbers (fewer bits).
Keeps = Literal["numbers", "mathematics", "distribution", "nothing"]

# The same in words, the most first.
KEPT: Mapping[Keeps, str] = {
    "numbers": "the same numbers",
    "mathematics": "the same mathematics",
    "distribution": "the same distribution",
    "nothing": "other numbers",
}


# What a plan changes in the training, the least first.
#
# Only its surroundings (threads, CPUs, allocator, OpenMP runtime, loader workers); the same
# mathematics, added or rounded differently, which is checked (ranks, accumulation, padding, sparse
# gradients, the optimizer's kernel); or other numbers (bf16, masks, order).
Kind = Literal["touches nothing", "same mathematics", "other numbers"]

KINDS: tuple[Kind, ...] = ("touches nothing", "same mathematics", "other numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One thing by which a rank shows that it runs as the plan says.

    Attributes:
        key: in the state of a rank (``cputune.inside.messages.RankState``).
        expected: what the plan says for a local rank; None if it says nothing.
        read: converts the value under ``key`` to the form of ``expected``; None if the value
            says nothing.
        unknown: why a rank may not show it; otherwise it must. A rank that knows the reason
            reports it under ``key_unknown``.
        by_cpu_number: it names CPUs, so it has no meaning if a scheduler assigns them.
    """

    what: str
    key: str
    expected: Callable[[Plan, int], object | None]
    read: Callable[[Plan, Any], object | None] = lambda plan, value: value
    unknown: str | None = None
    by_cpu_number: bool = False

    def reported(self, plan: Plan, state: State) -> object | None:
        """What the state of a rank shows; None if it does not show it."""
        value = state.get(self.key)
        if value is None:
            return None
        return self.read(plan, value)

    def why_unseen(self, state: State) -> str | None:
        """Why the rank may not show it; None if it must."""
        return state.get(f"{self.key}_unknown") or self.unknown


def changed_shown(what: str, key: str, name: str) -> Shown:
    """A rank shows a knob's value; it must if the value is not the current one."""
    return Shown(what=what, key=key, expected=lambda plan, local_rank: plan.settings.get(name))


def variable_shown(
    name: str, variables: Callable[[Plan], Mapping[str, str]], *, by_cpu_number: bool = False
) -> Shown:
    """A variable that a native library reads; it is all that a rank shows of the knob."""
    return Shown(
        what=name,
        key="environment",
        expected=lambda plan, local_rank: variables(plan).get(name),
        read=lambda plan, environment: str(environment.get(name, "not set")),
        by_cpu_number=by_cpu_number,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a plan occupies on a machine.

    ``busy_cores`` are those of one rank, ``share`` is that of all ranks in the cores of one machine
    (2 on two whole nodes), ``sockets`` and ``nodes`` are those of the first rank.
    """

    busy_cores: int
    on_siblings: bool
    share: float
    sockets: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """How much a knob may change the time per sample: the tuner's prior.

    Sizes are standard deviations of the natural log of the time: 0.1 means that two values differ
    by about a tenth. The effects of all knobs are added.

    Attributes:
        size: the part that is the same for every plan.
        within: how much more it differs if another knob differs, by that knob's name;
            ``layout`` means ranks and threads together.
        part_of: the knob for each value of which this effect is independent (oneCCL workers
            say nothing about gloo).
        feature: the plan's coordinate, for a knob whose values have distances.
        scale: the distance of two features at which one plan says little about the other.
        label: what two plans must share to have the same effect; by default the knob's value.
        expected: the log of the factor that a plan is expected to gain (below 0) or lose.
        source: of the sizes.
    """

    size: float
    within: Mapping[str, float] = field(default_factory=dict)
    part_of: str | None = None
    feature: Callable[[Plan, Footprint], float] | None = None
    scale: float = 1.0
    label: Callable[[Plan, Footprint], object] | None = None
    expected: Callable[[HostFacts, Plan], float] | None = None
    source: str


Put = Callable[[Plan, KnobValue, "HostFacts"], Plan | None]


def in_settings(name: str, needless: Callable[[Plan], bool] = lambda plan: False) -> Put:
    """A function that puts the value of a knob into the ``settings`` of a plan.

    ``needless``: whether only the default has a meaning in this plan.
    """

    def put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan | None:
        changed = plan.with_setting(name, value)
        if name in changed.settings and needless(plan):
            return None
        return changed

    return put


def in_field(name: str) -> Put:
    """A function that puts the value of a knob into the field of this name."""
    return lambda plan, value, facts: replace(plan, **{name: value})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One knob.

    Attributes:
        summary: what it is, in one line.
        values: those with a name, the current one first.
        least: whole numbers from this one on are values too.
        never: named values that no CPU trains with: no hint suggests them.
        keeps: what stays the same in the training while it is varied.
        effect: the prior of the tuner's model.
        offers: the values that are possible on a machine; or why only the current one is, None
            if all are. Without it they follow from the cores (``cputune.plans.layout``).
        put: a plan with this value; None if the value has no meaning with the knobs before it.
            None for a knob that decides CPUs.
        variables: the environment variables that set it in a rank.
        argument: the field of TrainingArguments that sets it, by its current name; a row of
            ``cputune/stack/stack.toml`` says how a version spells it.
        argument_value: the value of that field: None leaves it unset. Without it the value in
            ``settings``, or else the script's own.
        set_in_torch: whether it is set in torch itself (``cputune.inside.applying``).
        shown: how a rank shows that it obeys.
        unseen: why no rank shows it.
        as_seen: the plan with the value that a rank shows, for a launch that runs as typed.
        description: its part of ``Plan.describe()``; None for nothing.
    """

    name: str
    summary: str
    values: tuple[KnobValue, ...]
    keeps: Keeps
    effect: Effect
    least: int | None = None
    never: tuple[KnobValue, ...] = ()
    offers: Callable[[HostFacts, Ask], Choices | str | None] | None = None
    put: Put | None = None
    variables: Callable[[Plan], Mapping[str, str]] = lambda plan: {}
    argument: str | None = None
    argument_value: Callable[[Plan], Argument] | None = None
    set_in_torch: bool = False
    shown: tuple[Shown, ...] = ()
    unseen: str | None = None
    as_seen: Callable[[Plan, State], Plan] = lambda plan, state: plan
    description: Callable[[Plan], str | None] = lambda plan: None

    def __post_init__(self) -> None:
        if bool(self.shown) == bool(self.unseen):
            raise ValueError(f"{self.name}: ranks show a knob, or it says why none does")
        if self.put is not None and self.offers is None:
            raise ValueError(f"{self.name}: a knob with put needs offers")

    @property
    def baseline(self) -> KnobValue:
        """The value of a knob that is not varied."""
        return self.values[0]

    def choices(self, facts: HostFacts, ask: Ask) -> Choices:
        """The values that are possible on a machine; of a layout knob only the current one."""
        choices: Choices | str | None
        if self.offers is None:
            choices = Choices(values=self.values[:1])
        else:
            choices = self.offers(facts, ask)
        if isinstance(choices, Choices):
            return choices
        return unless(choices, f"{self.name}={as_text(self.values[1])}", *self.values)

    def parse(self, value: object) -> KnobValue:
        """Its value from text or from Python. Raises UsageError."""
        text = str(value).strip()
        for accepted in self.values:
            also = _SWITCH[accepted] if isinstance(accepted, bool) else ()
            if text.lower() in (as_text(accepted).lower(), *also):
                return accepted
        number = text.isascii() and text.isdigit() and len(text) < 10
        if self.least is not None and number and int(text) >= self.least:
            return int(text)
        accepted_values = []
        for named in self.values:
            if self.least is None or type(named) is not int:
                accepted_values.append(as_text(named))
        if self.least is not None:
            accepted_values.insert(0, f"a whole number from {self.least} on")
        example = "2"
        if self.least is None:
            useful = [as_text(named) for named in self.values if named not in self.never]
            near = difflib.get_close_matches(text.lower(), useful, n=1)
            if near:
                example = near[0]
            else:
                example = useful[0]
        what = accepted_values[-1]
        if len(accepted_values) > 1:
            what = f"{', '.join(accepted_values[:-1])} or {what}"
        raise UsageError(
            f"{self.name} is {what}, not {value!r}", hint=f"--fix {self.name}={example}"
        )

    def value_in(self, plan: Plan) -> KnobValue:
        """Its value in a plan; only of a knob with ``put``, which decides no CPUs."""
        value: KnobValue = plan.settings.get(self.name, getattr(plan, self.name, self.baseline))
        return value

    def arguments(self, plan: Plan) -> Mapping[str, Argument]:
        """The field of TrainingArguments that this plan sets, and its value; empty for none."""
        if self.argument is None:
            return {}
        if self.argument_value is not None:
            return {self.argument: self.argument_value(plan)}
        if self.name in plan.settings:
            return {self.argument: plan.settings[self.name]}
        return {}

    def in_torch(self, plan: Plan) -> Mapping[str, str]:
        """What is set in torch for this plan; empty if nothing is."""
        if not self.set_in_torch or self.name not in plan.settings:
            return {}
        return {self.name: as_text(plan.settings[self.name])}


_SWITCH = {True: ("true", "on", "1"), False: ("false", "off", "0")}
