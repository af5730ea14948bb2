"""How a rank takes the samples of a step: ``accumulation``, ``workers``, ``padding``, ``order``.

The global batch stays. Fewer and larger batches fill the cores better and need more memory; a
plan that has not enough of it fails as out of memory. The gradients are those of the same
samples, added up in another order and with other dropout masks, as with another number of ranks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cputune.knobs.record import (
    Argument,
    Ask,
    Choices,
    Effect,
    Knob,
    KnobValue,
    TrainerArgument,
    changed_shown,
    in_settings,
    one_of,
    unless,
    whole_number,
)

if TYPE_CHECKING:
    from types import EllipsisType

    from cputune.facts import HostFacts
    from cputune.plan import Plan
    from cputune.workload import Workload

DEFAULT = "default"

SHOWS = 0.03
"""A share of the step's time, or of its columns, that is worth a try: less is lost in the noise."""


def _what(name: str, wanted: KnobValue | None) -> str:
    return name if wanted is None else f"{name}={wanted}"


def _batches(facts: HostFacts, ask: Ask) -> Choices:
    """The script's own batches; and all samples at once, where it accumulates."""
    wanted = ask.fixed.get("accumulation")
    if wanted == DEFAULT:
        return Choices(values=(DEFAULT,))
    why = _why_not_cut(ask, wanted)
    if why is None and wanted is None:
        why = _why_at_once(ask.workload)
    return unless(why, _what("accumulation", wanted), DEFAULT, wanted or 1)


def _why_not_cut(ask: Ask, wanted: KnobValue | None) -> str | None:
    if ask.framework != "trainer":
        return "the script accumulates, or not, in a loop of its own"
    workload = ask.workload
    if workload is not None and workload.batch_per_rank is not None:
        return "--batch-per-rank says what a rank takes at once"
    samples = None if workload is None else workload.global_batch_size
    if wanted is not None and samples is not None and samples % int(wanted):
        return f"a global batch of {samples} cannot be cut into {wanted} batches"
    return None


def _why_at_once(workload: Workload | None) -> str | None:
    own = _own_batches(workload)
    if own is None:
        return "in how many batches the script takes a step is not known before it has run"
    if own > 1:
        return None
    return "the script takes its batch at once, and cutting it costs (--fix accumulation=2)"


def _own_batches(workload: Workload | None) -> int | None:
    """How many batches a step of the script has by itself; None where that is not known."""
    if workload is None or workload.recipe is not None:
        return 1
    told = workload.argument("--gradient_accumulation_steps")
    if workload.accumulation is None and told is not None and re.fullmatch(r"[0-9]{1,9}", told):
        return int(told)
    return workload.accumulation


def accumulation_of(plan: Plan) -> int | None:
    """In how many batches a rank takes its samples; None where the script decides."""
    value = plan.settings.get("accumulation")
    return None if value is None else int(value)


def _batches_in_words(plan: Plan) -> str | None:
    value = accumulation_of(plan)
    if value is None:
        return None
    return "not accumulated" if value == 1 else f"accumulated {value} times"


ACCUMULATION = Knob(
    name="accumulation",
    summary="in how many batches a rank takes its samples of one optimizer step",
    today=DEFAULT,
    parse=whole_number("accumulation", least=1, also=(DEFAULT,)),
    keeps="mathematics",
    choices=_batches,
    put=in_settings("accumulation"),
    shown=(changed_shown("accumulation", "accumulation", "accumulation"),),
    words=_batches_in_words,
    effect=Effect(
        own=0.1,
        within={"ranks": 0.06, "precision": 0.04},
        expected=lambda facts, plan: -0.06 if accumulation_of(plan) == 1 else 0.0,
        source="read side by side on two cores, 8 samples of 128 tokens: taken in two batches 0.88 "
        "times as fast as at once (log -0.13); a wary half of it is expected, since it weighs less "
        "beside larger batches",
    ),
)


def _loaders(facts: HostFacts, ask: Ask) -> Choices:
    """The script's own loader workers; one and two, where today's launch waited for its data."""
    wanted = ask.fixed.get("workers")
    if wanted == DEFAULT:
        return Choices(values=(DEFAULT,))
    why = None
    if ask.framework != "trainer":
        why = "the script makes its data loader itself"
    elif wanted is None:
        why = _why_no_loaders(ask.workload)
    values = (1, 2) if wanted is None else (wanted,)
    return unless(why, _what("workers", wanted), DEFAULT, *values)


def _why_no_loaders(workload: Workload | None) -> str | None:
    told = None if workload is None else workload.argument("--dataloader_num_workers")
    if told is not None:
        return f"the script asks for --dataloader_num_workers {told} itself"
    share = None if workload is None else workload.loading_share
    if share is None:
        return "how long a step waits for its data is not known before it has run"
    return f"a step waits for its data {100 * share:.1f} % of its time" if share < SHOWS else None


def _loader_argument(plan: Plan) -> Argument | EllipsisType:
    return plan.settings.get("workers", ...)


def _loaders_in_words(plan: Plan) -> str | None:
    workers = plan.settings.get("workers")
    return None if workers is None else f"{workers} loader{'' if workers == 1 else 's'}"


WORKERS = Knob(
    name="workers",
    summary="processes that prepare a rank's batches while it computes",
    today=DEFAULT,
    parse=whole_number("workers", least=0, also=(DEFAULT,)),
    keeps="numbers",
    choices=_loaders,
    put=in_settings("workers"),
    argument=TrainerArgument(name="dataloader_num_workers", value=_loader_argument),
    shown=(changed_shown("loader workers", "loader_workers", "workers"),),
    words=_loaders_in_words,
    effect=Effect(
        own=0.1,
        within={"layout": 0.06},
        expected=lambda facts, plan: -0.05 if plan.settings.get("workers") else 0.0,
        answers=("waiting for data", 0.9),
        source="assumed: a worker takes the waiting out of the step and a part of a core from its "
        "threads; it is offered where 3 % of the step or more are spent waiting",
    ),
)


def _columns(facts: HostFacts, ask: Ask) -> Choices:
    """Padding as in the script; and cut, where today's launch was seen to train the same so."""
    why = None if "padding" in ask.fixed else _why_full(ask.workload)
    return unless(why, "padding=cut", "full", "cut")


def _why_full(workload: Workload | None) -> str | None:
    padding = None if workload is None else workload.padding
    if padding is None:
        return "how much of the batches is padding is not known before it has run"
    if padding.kept is not None:
        return f"{padding.share:.0%} of the tokens are padding, but {padding.kept}"
    if padding.left > 1 - SHOWS:
        return f"{1 - padding.left:.1%} of the columns are padding in all samples of a batch"
    return None


PADDING = Knob(
    name="padding",
    summary="whether columns that are padding in all samples of a batch are computed, or cut off",
    today="full",
    parse=one_of("padding", ("full", "cut")),
    keeps="mathematics",
    choices=_columns,
    put=in_settings("padding"),
    set_in_torch=True,
    shown=(changed_shown("padding", "padding", "padding"),),
    words=lambda plan: "padding cut" if "padding" in plan.settings else None,
    effect=Effect(
        own=0.5,
        within={"layout": 0.1, "precision": 0.1},
        expected=lambda facts, plan: -0.4 if "padding" in plan.settings else 0.0,
        answers=("padding", 0.9),
        source="paired readings on a Zen 3 core, batches of 8: 4.2 times as fast where 23 % of the "
        "columns are left, 2.0 where 55 % are (logs -1.4 and -0.7)",
    ),
)


def _orders(facts: HostFacts, ask: Ask) -> Choices:
    """The script's own order; and samples of like length, where lengths differ within a batch."""
    why = None if ask.framework == "trainer" else "the script makes its data loader itself"
    if why is None and "order" not in ask.fixed:
        why = _why_as_drawn(ask.workload)
    return unless(why, "order=length", "random", "length")


def _why_as_drawn(workload: Workload | None) -> str | None:
    padding = None if workload is None else workload.padding
    if padding is None:
        return "how much of the batches is padding is not known before it has run"
    if padding.kept is not None and padding.left <= 1 - SHOWS:
        return f"the columns that are padding stay: {padding.kept}"
    of_one_length = 1 - (1 - padding.share) / max(padding.left, 1 - padding.share, 1e-9)
    return None if of_one_length >= SHOWS else "the samples of a batch are of like length already"


ORDER = Knob(
    name="order",
    summary="whether samples are drawn at random, or those of a step are of like length",
    today="random",
    parse=one_of("order", ("random", "length")),
    keeps="distribution",
    choices=_orders,
    put=in_settings("order"),
    set_in_torch=True,
    shown=(changed_shown("order of samples", "order", "order"),),
    words=lambda plan: "samples of like length" if "order" in plan.settings else None,
    effect=Effect(
        own=0.25,
        within={"padding": 0.25, "layout": 0.1},
        expected=lambda facts, plan: -0.15 if "order" in plan.settings else 0.0,
        source="assumed: batches of like length have few columns that are padding; 1 h 1 min "
        "instead of 4 h 38 min together with padding that is cut (Lefebvre Sarrut 2020, X-NLI)",
    ),
)
