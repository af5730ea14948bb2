"""What a knob is: one thing about a launch that can be varied, and all that is known of it.

The record holds functions of plans, and plans are built from these records; so a plan
is known here by its fields alone (the import is for the type checker).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from cputune.errors import UsageError

if TYPE_CHECKING:
    from cputune.host.facts import HostFacts
    from cputune.plans.plan import Plan
    from cputune.plans.workload import Workload
    from cputune.stack.uses import Framework

KnobValue = int | str | bool

Argument = bool | int | str | None
"""What a field of TrainingArguments is set to; None leaves it unset."""

State = Mapping[str, Any]
"""What a rank says about itself, as ``cputune.inside.state`` reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A knob or a value that is not in the space, and why; ``option`` of tune brings it in."""

    what: str
    why: str
    option: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The values that a knob can take here, today's first, and those that it cannot, and why."""

    values: tuple[KnobValue, ...]
    left_out: tuple[LeftOut, ...] = ()


def unless(why: str | None, what: str, *values: KnobValue) -> Choices:
    """All of these values; or the first alone, today's, where there is a reason ``why``."""
    if why is None:
        return Choices(values=tuple(dict.fromkeys(values)))
    return Choices(values=values[:1], left_out=(LeftOut(what=what, why=why),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What somebody wants of the space, beside what the machine can do.

    ``fixed`` are knobs that are held at a value. ``allow_slow_precision`` offers bf16
    where the CPU only emulates it, ``allow_bf16_gradients`` that gradients are sent in it.
    ``workload`` is what is trained. ``own`` are knobs that its
    script decides, at the values of today's launch; they are held in ``fixed`` too. ``hosts`` are
    those that plans may run on, by name and in order; none where it is this machine alone. ``keep``
    is how much of the training is to stay the same, ``named`` are knobs that somebody has named.
    """

    workload: Workload | None = None
    fixed: Mapping[str, KnobValue] = field(default_factory=dict)
    own: Mapping[str, KnobValue] = field(default_factory=dict)
    hosts: tuple[tuple[str, HostFacts], ...] = ()
    allow_slow_precision: bool = False
    keep: Keeps | None = None
    named: frozenset[str] = frozenset()
    allow_bf16_gradients: bool = False

    def kept(self, name: str, values: Iterable[KnobValue]) -> tuple[KnobValue, ...]:
        """Of a knob's values those that are wanted: all, or the one that it is held at."""
        if name not in self.fixed:
            return tuple(values)
        return tuple(value for value in values if value == self.fixed[name])

    @property
    def framework(self) -> Framework:
        """Whose rules hold; a script that has not run yet counts as a Trainer's."""
        known = self.workload.framework if self.workload is not None else None
        return "trainer" if known in (None, "trainer") else "accelerate"


Keeps = Literal["numbers", "mathematics", "distribution", "nothing"]
"""What of a training stays the same while a knob is varied, the most first.

The same numbers (another allocator); the same mathematics, rounded or added up otherwise (another
number of ranks); the same distribution, drawn otherwise (other masks, another order of batches);
or other numbers (a type of fewer bits).
"""

KEPT: Mapping[Keeps, str] = {
    "numbers": "the same numbers",
    "mathematics": "the same mathematics",
    "distribution": "the same distribution",
    "nothing": "other numbers",
}
"""What people read, the most first."""


Kind = Literal["touches nothing", "same mathematics", "other numbers"]
"""What a plan changes in the training, the least first.

Where and with what it runs (threads, CPUs, allocator, OpenMP runtime, loader workers); the same
mathematics, added up or rounded otherwise, which is checked (ranks, accumulation, padding, sparse
gradients, the optimizer's kernel); or other numbers (bf16, masks drawn otherwise, another order).
"""

KINDS: tuple[Kind, ...] = ("touches nothing", "same mathematics", "other numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One thing by which a rank shows that it runs as the plan says.

    Attributes:
        what: what it is called, for people.
        key: where it stands in the state of a rank (``cputune.inside.messages.RankState``).
        expected: what the plan says for a local rank; None where it says nothing.
        read: what the value under ``key`` means, in the words of ``expected``; equal where the
            rank obeys, None where it tells nothing.
        unknown: why a rank may show nothing of it. Without a reason a rank that shows nothing
            does not obey. A rank that knows the reason itself says it under ``key_unknown``.
        by_cpu_number: it names CPUs, so it means nothing where a scheduler deals them out.
    """

    what: str
    key: str
    expected: Callable[[Plan, int], object | None]
    read: Callable[[Plan, Any], object | None] = lambda plan, value: value
    unknown: str | None = None
    by_cpu_number: bool = False

    def seen(self, plan: Plan, state: State) -> object | None:
        """What the state of a rank shows; None where it shows nothing."""
        value = state.get(self.key)
        return None if value is None else self.read(plan, value)

    def why_unseen(self, state: State) -> str | None:
        """Why the rank may show nothing; None where it has to show it."""
        return state.get(f"{self.key}_unknown") or self.unknown


def changed_shown(what: str, key: str, name: str) -> Shown:
    """A rank shows a knob's value; it must where the value is not today's. ``name``: the knob's."""
    return Shown(what=what, key=key, expected=lambda plan, local_rank: plan.settings.get(name))


def variable_shown(
    name: str, variables: Callable[[Plan], Mapping[str, str]], *, by_cpu_number: bool = False
) -> Shown:
    """A variable that a native library reads, and by which alone the rank shows the knob.

    ``variables`` are those of the knob, as the plan has them.
    """
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

    ``busy_cores`` are those of one rank, ``share`` is that of all ranks in the cores of
    one machine (2 on two whole nodes), ``sockets`` and ``nodes`` are those under the first rank.
    """

    busy_cores: int
    on_siblings: bool
    share: float
    sockets: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """How much a knob may change the time per sample, believed before anything is measured.

    Sizes are standard deviations of the natural log of the time: 0.1 says that two values
    differ by about a tenth. The model of the tuner adds the effects of all knobs up.

    Attributes:
        own: the size that is the same for every plan.
        within: how much more it differs where another knob differs, by the name of that
            knob; ``layout`` stands for ranks and threads together.
        part_of: the knob with whose value this effect begins anew (the oneCCL workers say
            nothing about gloo).
        feature: the plan's coordinate for a knob whose values are near or far; plans with
            one ``label`` are alike otherwise.
        scale: the distance of two features at which what one plan shows says little about
            the other.
        label: what two plans must share to have the same effect; without it, and without a
            ``feature``, the value of the knob.
        expected: the log of the factor that a plan is expected to gain (below 0) or lose.
        source: where the sizes come from.
    """

    own: float
    within: Mapping[str, float] = field(default_factory=dict)
    part_of: str | None = None
    feature: Callable[[Plan, Footprint], float] | None = None
    scale: float = 1.0
    label: Callable[[Plan, Footprint], object] | None = None
    expected: Callable[[HostFacts, Plan], float] | None = None
    source: str


Put = Callable[["Plan", KnobValue, "HostFacts"], "Plan | None"]


def in_settings(name: str, needless: Callable[[Plan], bool] = lambda plan: False) -> Put:
    """What puts the value of a knob into the ``settings`` of a plan.

    ``needless``: whether any but today's value means nothing beside what the plan has.
    """

    def put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan | None:
        changed = plan.with_setting(name, value)
        return None if name in changed.settings and needless(plan) else changed

    return put


def in_field(name: str) -> Put:
    """What puts the value of a knob into the field of a plan that is called like it."""
    return lambda plan, value, facts: replace(plan, **{name: value})  # type: ignore[arg-type]


def in_words(value: KnobValue) -> str:
    """A value as people type it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One knob.

    Attributes:
        name: how people and files name it.
        summary: what it is, in one line for people.
        values: those that have a name; the first is that of today, at which it stays where it is
            not varied.
        least: whole numbers are values too, from this one on.
        never: values that have a name, and that no CPU trains with: no hint suggests them.
        keeps: what stays the same of the training while it is varied.
        effect: what the tuner's model believes of it beforehand.
        offers: the values that live on a machine; or why none but today's does, None where all of
            ``values`` do. Without it they follow from the cores (see ``cputune.plans.layout``).
        put: a plan with this value; it gives None where the value means nothing beside what
            the knobs before it have put there. None for a knob that decides which CPUs a
            plan has. A plan keeps it in its ``settings`` where it has no field of this name.
        variables: the environment variables that carry it into a rank.
        argument: the field of TrainingArguments that carries it, by its name in today's
            transformers; a row of ``cputune/stack/stack.toml`` says how a version spells it.
        argument_value: what that is set to: None where it is left unset, whatever the script has.
            Without it the value in ``settings``, and the script's own where there is none.
        set_in_torch: whether it is set in torch itself (``cputune.inside.carry``).
        shown: how a rank shows that it obeys.
        unseen: why no rank shows it; None for a knob that ranks show.
        as_seen: the plan with the value that a rank shows, for a launch that is run as found.
        words: its part of ``Plan.describe()``; None where there is nothing to say.
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
    words: Callable[[Plan], str | None] = lambda plan: None

    def __post_init__(self) -> None:
        if bool(self.shown) == bool(self.unseen):
            raise ValueError(f"{self.name}: ranks show a knob, or it says why none does")
        if self.put is not None and self.offers is None:
            raise ValueError(f"{self.name}: it is put into plans, and offers no values for it")

    @property
    def today(self) -> KnobValue:
        """The value that it stays at where it is not varied."""
        return self.values[0]

    def choices(self, facts: HostFacts, ask: Ask) -> Choices:
        """The values that live on a machine; today's alone for a knob of the layout."""
        found = Choices(values=self.values[:1]) if self.offers is None else self.offers(facts, ask)
        if isinstance(found, Choices):
            return found
        return unless(found, f"{self.name}={in_words(self.values[1])}", *self.values)

    def parse(self, value: object) -> KnobValue:
        """Its value from text or from Python. Raises UsageError."""
        text = str(value).strip()
        for accepted in self.values:
            also = _SWITCH[accepted] if isinstance(accepted, bool) else ()
            if text.lower() in (in_words(accepted), *also):
                return accepted
        number = text.isascii() and text.isdigit() and len(text) < 10
        if self.least is not None and number and int(text) >= self.least:
            return int(text)
        known = [in_words(v) for v in self.values if self.least is None or type(v) is not int]
        if self.least is not None:
            known.insert(0, f"a whole number from {self.least} on")
        example = "2"
        if self.least is None:
            useful = [in_words(v) for v in self.values if v not in self.never]
            near = difflib.get_close_matches(text.lower(), useful, n=1)
            example = near[0] if near else useful[0]
        what = " or ".join(filter(None, (", ".join(known[:-1]), known[-1])))
        raise UsageError(
            f"{self.name} is {what}, not {value!r}", hint=f"--fix {self.name}={example}"
        )

    def arguments(self, plan: Plan) -> Mapping[str, Argument]:
        """The field of TrainingArguments that this plan sets, and to what; empty for none."""
        if self.argument is None:
            return {}
        if self.argument_value is not None:
            return {self.argument: self.argument_value(plan)}
        return {self.argument: plan.settings[self.name]} if self.name in plan.settings else {}

    def in_torch(self, plan: Plan) -> Mapping[str, str]:
        """What is set in torch for this plan; empty where it stays as it is."""
        value = plan.setting(self.name) if self.set_in_torch else self.today
        return {} if value == self.today else {self.name: in_words(value)}


_SWITCH = {True: ("true", "on", "1"), False: ("false", "off", "0")}
