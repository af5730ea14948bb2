"""How a rank takes the samples of a step: ``accumulation``, ``workers``, ``padding``, ``order``.

The global batch stays. Fewer and larger batches use the cores better and need more memory.
Gradients are those of the same samples, added in another order and with other dropout masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.plans.knobs.record import (
    Ask,
    Choices,
    Effect,
    Knob,
    LeftOut,
    changed_shown,
    in_settings,
    unless,
)
from cputune.plans.plan import Plan
from cputune.plans.values import KnobValue
from cputune.text.plain import count

if TYPE_CHECKING:
    from cputune.host.facts import HostFacts
    from cputune.plans.values import KnobValue

DEFAULT = "default"

# Share of a step's time, or of its columns, that is worth a trial: less is lost in noise.
SHOWS = 0.03


# How samples are drawn, as a rank reports it.
STREAM, AT_RANDOM = "a stream", "at random"


def _numbers(ask: Ask, name: str, reason: str | None, usual: tuple[KnobValue, ...]) -> Choices:
    """The script's own number and the usual others, or the requested one."""
    wanted = ask.fixed.get(name)
    if wanted == DEFAULT:
        return Choices(values=(DEFAULT,))
    if wanted is None:
        what = name
    else:
        what = f"{name}={wanted}"
    return unless(reason, what, DEFAULT, *(usual if wanted is None else (wanted,)))


def _batches(facts: HostFacts, ask: Ask) -> Choices:
    """The script's batches; and all samples at once if it accumulates."""
    workload, wanted = ask.workload, ask.fixed.get("accumulation")
    samples = None
    if workload is not None:
        samples = workload.global_batch_size
    reason = None
    if ask.framework != "trainer":
        reason = "the script's own loop decides the accumulation"
    elif workload is not None and workload.batch_per_rank is not None:
        reason = "--batch-per-rank fixes the batch of a rank"
    elif (
        workload is not None
        and workload.model_answers is not None
        and workload.model_answers.refuses("accumulation")
    ):
        reason = workload.model_answers.refuses("accumulation")
    elif wanted is None:
        batches: int | None = 1
        if workload is not None and workload.recipe is None:
            batches = workload.typed_accumulation
        if batches is None:
            reason = "the script's batches per step are not known before it has run"
        elif batches == 1:
            reason = (
                "the script does not accumulate, and accumulating is slower (--fix accumulation=2)"
            )
    elif wanted != DEFAULT and samples is not None and samples % int(wanted):
        reason = f"a global batch of {samples} cannot be divided into {wanted} batches"
    return _numbers(ask, "accumulation", reason, (1,))


def accumulation_of(plan: Plan) -> int | None:
    """In how many batches a rank takes its samples; None if the script decides."""
    value = plan.settings.get("accumulation")
    if value is None:
        return None
    return int(value)


def _batches_described(plan: Plan) -> str | None:
    value = accumulation_of(plan)
    if value is None:
        return None
    if value == 1:
        return "not accumulated"
    return f"accumulated {value} times"


ACCUMULATION = Knob(
    name="accumulation",
    summary="number of batches in which a rank computes its samples of one optimizer step",
    values=(DEFAULT,),
    least=1,
    keeps="mathematics",
    offers=_batches,
    put=in_settings("accumulation"),
    shown=(changed_shown("accumulation", "accumulation", "accumulation"),),
    description=_batches_described,
    effect=Effect(
        size=0.1,
        within={"ranks": 0.06, "precision": 0.04},
        expected=lambda facts, plan: -0.06 if accumulation_of(plan) == 1 else 0.0,
        source="read side by side on two cores, 8 samples of 128 tokens: taken in two batches 0.88 "
        "times as fast as at once (log -0.13); half of it is expected, since "
        "it matters less with larger batches",
    ),
)


def _loaders(facts: HostFacts, ask: Ask) -> Choices:
    """The script's loader workers; also one and two if the current launch waited for its data."""
    job = ask.workload
    typed = None
    if job is not None:
        typed = job.argument("--dataloader_num_workers")
    share = None
    if job is not None:
        share = job.loading_share
    reason = None
    if ask.framework != "trainer":
        reason = "the script creates its data loader itself"
    elif job is not None and job.refuses("workers"):
        reason = job.refuses("workers")
    elif "workers" in ask.fixed:
        pass
    elif job is not None and job.drawn == STREAM:
        reason = "its data set is a stream, and each worker would read all of it"
    elif typed is not None:
        reason = f"the script sets --dataloader_num_workers {typed} itself"
    elif share is None:
        reason = "how long a step waits for its data is not known before it has run"
    elif share < SHOWS:
        reason = f"a step waits for its data {100 * share:.1f} % of its time"
    return _numbers(ask, "workers", reason, (1, 2))


def _loaders_described(plan: Plan) -> str | None:
    workers = plan.settings.get("workers")
    if workers is None:
        return None
    return count(int(workers), "loader")


WORKERS = Knob(
    name="workers",
    summary="processes that prepare a rank's batches while it computes",
    values=(DEFAULT,),
    least=0,
    keeps="numbers",
    offers=_loaders,
    put=in_settings("workers"),
    argument="dataloader_num_workers",
    shown=(changed_shown("loader workers", "loader_workers", "workers"),),
    description=_loaders_described,
    effect=Effect(
        size=0.1,
        within={"layout": 0.06},
        expected=lambda facts, plan: -0.05 if plan.settings.get("workers") else 0.0,
        source="assumed: a worker takes the waiting out of the step and a part of a core from its "
        "threads; it is offered where 3 % of the step or more are spent waiting",
    ),
)

_NOT_RUN = "the share of padding is not known before it has run"


def _why_full(facts: HostFacts, ask: Ask) -> str | None:
    """Why padding is not cut: the current launch must have shown that cutting changes nothing."""
    padding = None
    if ask.workload is not None:
        padding = ask.workload.padding
    if "padding" in ask.fixed:
        if ask.workload is None:
            return None
        return ask.workload.refuses("padding")
    if padding is None:
        return _NOT_RUN
    if padding.kept is not None and not padding.share:
        return padding.kept
    if padding.kept is not None:
        return f"{padding.share:.0%} of the tokens are padding, but {padding.kept}"
    if padding.left > 1 - SHOWS:
        return f"{1 - padding.left:.1%} of the columns are padding in all samples of a batch"
    return None


PADDING = Knob(
    name="padding",
    summary="whether columns that are padding in all samples of a batch are computed or cut",
    values=("full", "cut"),
    keeps="mathematics",
    offers=_why_full,
    put=in_settings("padding"),
    set_in_torch=True,
    shown=(changed_shown("padding", "padding", "padding"),),
    description=lambda plan: "padding cut" if "padding" in plan.settings else None,
    effect=Effect(
        size=0.5,
        within={"layout": 0.1, "precision": 0.1},
        expected=lambda facts, plan: -0.4 if "padding" in plan.settings else 0.0,
        source="paired readings on a Zen 3 core, batches of 8: 4.2 times as fast if 23 % of the "
        "columns are left, 2.0 if 55 % are (logs -1.4 and -0.7)",
    ),
)


OF_LIKE_LENGTH = LeftOut(
    what="order=length",
    why="samples of a step would be of like length, and where a label goes with the length a step "
    "has more of one label",
    option="--fix order=length",
)


def _orders(facts: HostFacts, ask: Ask) -> Choices | str | None:
    """Samples of similar length only on request: that changes the content of batches."""
    reason = _why_as_drawn(facts, ask)
    is_requested = "order" in {*ask.fixed, *ask.named} or ask.keep == "distribution"
    if reason is None and not is_requested:
        return Choices(values=("random",), left_out=(OF_LIKE_LENGTH,))
    return reason


def _why_as_drawn(facts: HostFacts, ask: Ask) -> str | None:
    """Why the order of samples stays: another one pays only if lengths differ within a batch."""
    padding = None if ask.workload is None else ask.workload.padding
    if ask.framework != "trainer":
        return "the script creates its data loader itself"
    drawn = None
    if ask.workload is not None:
        drawn = ask.workload.drawn
    if drawn == STREAM:
        return "its data set is a stream, which has one order"
    if drawn not in (None, AT_RANDOM):
        return f"the script draws its samples by its own {drawn}, and not at random"
    if "order" in ask.fixed:
        return None
    if padding is None:
        return _NOT_RUN
    if padding.kept is not None and not padding.share:
        return padding.kept
    if padding.kept is not None and padding.left <= 1 - SHOWS:
        return f"columns of padding cannot be cut: {padding.kept}"
    of_one_length = 1 - (1 - padding.share) / max(padding.left, 1 - padding.share, 1e-9)
    if of_one_length >= SHOWS:
        return None
    return "the samples of a batch already have similar lengths"


ORDER = Knob(
    name="order",
    summary="whether samples are drawn at random, or those of a step have similar lengths",
    values=("random", "length"),
    keeps="distribution",
    offers=_orders,
    put=in_settings("order"),
    set_in_torch=True,
    shown=(changed_shown("order of samples", "order", "order"),),
    description=lambda plan: "samples of like length" if "order" in plan.settings else None,
    effect=Effect(
        size=0.25,
        within={"padding": 0.25, "layout": 0.1},
        expected=lambda facts, plan: -0.15 if "order" in plan.settings else 0.0,
        source="assumed: batches of similar lengths have few columns of padding; 1 h 1 min "
        "instead of 4 h 38 min together with padding that is cut (Lefebvre Sarrut 2020, X-NLI)",
    ),
)
