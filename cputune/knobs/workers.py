"""The knob ``workers``: processes that prepare a rank's batches while it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.knobs.record import (
    Argument,
    Ask,
    Choices,
    Effect,
    Knob,
    KnobValue,
    LeftOut,
    Shown,
    TrainerArgument,
    whole_number,
)

if TYPE_CHECKING:
    from types import EllipsisType

    from cputune.facts import HostFacts
    from cputune.plan import Plan
    from cputune.workload import Workload

DEFAULT = "default"

SHOWS = 0.03
"""A share of the step's time that is worth a worker: less is lost in the noise."""


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """The script's own; one and two, where today's launch was seen to wait for its data."""
    wanted = ask.fixed.get("workers")
    if wanted == DEFAULT:
        return Choices(values=(DEFAULT,))
    why = None
    if ask.framework != "trainer":
        why = "the script makes its data loader itself"
    elif wanted is None:
        why = _why_needless(ask.workload)
    if why is None:
        return Choices(values=(DEFAULT, 1, 2) if wanted is None else (DEFAULT, wanted))
    what = "workers" if wanted is None else f"workers={wanted}"
    return Choices(values=(DEFAULT,), left_out=(LeftOut(what=what, why=why),))


def _why_needless(workload: Workload | None) -> str | None:
    told = None if workload is None else workload.argument("--dataloader_num_workers")
    if told is not None:
        return f"the script asks for --dataloader_num_workers {told} itself"
    share = None if workload is None else workload.loading_share
    if share is None:
        return "how long a step waits for its data is not known before it has run"
    if share < SHOWS:
        return f"a step waits for its data {100 * share:.1f} % of its time"
    return None


def _put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan:
    return plan.with_setting("workers", value)


def _workers(plan: Plan) -> int | None:
    value = plan.setting("workers")
    return None if value == DEFAULT else int(value)


def _argument(plan: Plan) -> Argument | EllipsisType:
    workers = _workers(plan)
    return ... if workers is None else workers


def _words(plan: Plan) -> str | None:
    workers = _workers(plan)
    if workers is None:
        return None
    return "1 loader" if workers == 1 else f"{workers} loaders"


WORKERS = Knob(
    name="workers",
    summary="processes that prepare a rank's batches while it computes",
    today=DEFAULT,
    parse=whole_number("workers", least=0, also=(DEFAULT,)),
    keeps="numbers",
    choices=_choices,
    put=_put,
    in_settings=True,
    argument=TrainerArgument(name="dataloader_num_workers", value=_argument),
    shown=(
        Shown(
            what="loader workers",
            key="loader_workers",
            expected=lambda plan, local_rank: _workers(plan),
        ),
    ),
    words=_words,
    effect=Effect(
        own=0.1,
        within={"layout": 0.06},
        label=lambda plan, at: plan.setting("workers"),
        expected=lambda facts, plan: -0.05 if _workers(plan) else 0.0,
        answers=("waiting for data", 0.9),
        source="assumed: a worker takes the waiting out of the step and a part of a core from its "
        "threads; it is offered where 3 % of the step or more are spent waiting",
    ),
)
