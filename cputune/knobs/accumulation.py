"""The knob ``accumulation``: in how many batches a rank takes its samples of one optimizer step.

The global batch stays. Fewer and larger batches fill the cores better and need more memory; a
plan that has not enough of it fails as out of memory. The gradients are those of the same
samples, added up in another order and with other dropout masks, as with another number of ranks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cputune.knobs.record import (
    Ask,
    Choices,
    Effect,
    Knob,
    KnobValue,
    LeftOut,
    Shown,
    whole_number,
)

if TYPE_CHECKING:
    from cputune.facts import HostFacts
    from cputune.plan import Plan
    from cputune.workload import Workload

DEFAULT = "default"


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """The script's own; and all samples at once, where it accumulates."""
    wanted = ask.fixed.get("accumulation")
    if wanted == DEFAULT:
        return Choices(values=(DEFAULT,))
    why = _why_impossible(ask, wanted)
    if why is None and wanted is None:
        why = _why_needless(ask.workload)
    if why is None:
        return Choices(values=(DEFAULT, wanted or 1))
    return Choices(values=(DEFAULT,), left_out=(LeftOut(what=_named(wanted), why=why),))


def _named(wanted: KnobValue | None) -> str:
    return "accumulation" if wanted is None else f"accumulation={wanted}"


def _why_impossible(ask: Ask, wanted: KnobValue | None) -> str | None:
    if ask.framework != "trainer":
        return "the script accumulates, or not, in a loop of its own"
    workload = ask.workload
    if workload is not None and workload.batch_per_rank is not None:
        return "--batch-per-rank says what a rank takes at once"
    samples = None if workload is None else workload.global_batch_size
    if wanted is not None and samples is not None and samples % int(wanted):
        return f"a global batch of {samples} cannot be cut into {wanted} batches"
    return None


def _why_needless(workload: Workload | None) -> str | None:
    own = _own(workload)
    if own is None:
        return "in how many batches the script takes a step is not known before it has run"
    if own > 1:
        return None
    return "the script takes its batch at once, and cutting it costs (--fix accumulation=2)"


def _own(workload: Workload | None) -> int | None:
    """Batches of a step as the script has them by itself; None where that is not known."""
    if workload is None or workload.recipe is not None:
        return 1
    told = workload.argument("--gradient_accumulation_steps")
    if workload.accumulation is None and told is not None and re.fullmatch(r"[0-9]{1,9}", told):
        return int(told)
    return workload.accumulation


def _put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan:
    return plan.with_setting("accumulation", value)


def accumulation_of(plan: Plan) -> int | None:
    """In how many batches a rank takes its samples; None where the script decides."""
    value = plan.setting("accumulation")
    return None if value == DEFAULT else int(value)


def _words(plan: Plan) -> str | None:
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
    choices=_choices,
    put=_put,
    in_settings=True,
    shown=(
        Shown(
            what="accumulation",
            key="accumulation",
            expected=lambda plan, local_rank: accumulation_of(plan),
        ),
    ),
    words=_words,
    effect=Effect(
        own=0.1,
        within={"ranks": 0.06, "precision": 0.04},
        label=lambda plan, at: plan.setting("accumulation"),
        expected=lambda facts, plan: -0.06 if accumulation_of(plan) == 1 else 0.0,
        source="read side by side on two cores, 8 samples of 128 tokens: taken in two batches 0.88 "
        "times as fast as at once (log -0.13); a wary half of it is expected, since it weighs less "
        "beside larger batches",
    ),
)
