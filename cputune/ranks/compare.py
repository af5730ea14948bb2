"""Compares the reports of ranks with their plan, for trials and for launches. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import cast

from cputune.inside.applying.figures import Figures, described, how_apart
from cputune.inside.messages import RankState
from cputune.plans.equivalence import ModelAnswers, Training
from cputune.plans.knobs import KNOBS
from cputune.plans.knobs.kernels import optimizer_of
from cputune.plans.plan import Plan
from cputune.plans.workload import Masks, Padding, Recipe, Workload
from cputune.records.steps import Infeasible
from cputune.text import cpulist


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One property of a rank: what it reports, and what the plan says.

    ``knob`` is empty for a property of no knob. ``rank`` is the global number. ``seen``: None if
    the rank does not report it; ``unknown`` then says why it may not. ``by_cpu_number``: see
    ``Shown``.
    """

    what: str
    rank: int
    expected: str
    seen: str | None
    unknown: str | None = None
    by_cpu_number: bool
    knob: str = ""

    @property
    def differs(self) -> bool:
        """Whether the rank reports another value than the plan's, or nothing without a reason."""
        if self.seen is None:
            return self.unknown is None
        return self.seen != self.expected


def compare(plan: Plan, states: Sequence[tuple[int, RankState]]) -> tuple[Compared, ...]:
    """Everything that the plan says, with the report of each rank (number, state).

    Launchers number the ranks node by node. Nothing is compared for a plan that runs as typed.
    """
    if plan.as_found:
        return ()
    rows = []
    for knob in KNOBS:
        for shown in knob.shown:
            for rank, state in states:
                expected = shown.expected(plan, rank % plan.processes_per_node)
                if expected is None:
                    continue
                rows.append(
                    Compared(
                        what=shown.what,
                        knob=knob.name,
                        rank=rank,
                        expected=str(expected),
                        seen=_as_text(shown.reported(plan, state)),
                        unknown=shown.why_unseen(state),
                        by_cpu_number=shown.by_cpu_number,
                    )
                )
    return tuple(rows)


def differences(plan: Plan, states: Sequence[RankState]) -> tuple[str, ...]:
    """The differences between ranks and plan, with both values."""
    rows = compare(plan, tuple(enumerate(states)))
    ranks: dict[tuple[str, str, str | None], list[int]] = {}
    for row in rows:
        if row.differs:
            ranks.setdefault((row.what, row.expected, row.seen), []).append(row.rank)
    texts = []
    for (what, expected, shown), numbers in ranks.items():
        of_ranks = _of(numbers, len(states))
        texts.append(f"{what}{of_ranks}: {shown or 'not shown'}, the plan says {expected}")
    return tuple(texts)


def runs_alike(plan: Plan, states: Sequence[Mapping[str, object]]) -> bool:
    """Whether ranks with these states (``for_people``) ran as the plan says."""
    if plan.as_found or len(states) != plan.world_size:
        return False
    rows = compare(plan, list(enumerate(map(_state_of, states))))
    return all(row.seen == row.expected for row in rows)


def refused_properties(
    plan: Plan, states: Sequence[Mapping[str, object]], reason: str
) -> tuple[Compared, ...]:
    """The properties in which ranks with these states (``for_people``) differ from the plan, if
    ``reason`` names them.
    """
    names = {part.split(": ")[0].split(" of rank ")[0] for part in reason.split("; ")}
    rows = compare(plan, list(enumerate(map(_state_of, states))))
    return tuple(row for row in rows if row.what in names and row.seen != row.expected)


def shows_otherwise(what: str, states: Sequence[Mapping[str, object]], plan: Plan) -> bool:
    """Whether ranks with these states (``for_people``) show a property otherwise than the plan."""
    rows = compare(plan, list(enumerate(map(_state_of, states))))
    return any(row.what == what and row.seen != row.expected for row in rows)


def _state_of(state: Mapping[str, object]) -> RankState:
    """The state of a rank out of what a result holds of it."""
    cpus = cpulist.parse(str(state.get("affinity") or ""))
    # A rank shows preloaded libraries as mapped files.
    return cast("RankState", {"mapped": state.get("preload"), **state, "affinity": cpus})


def unseen(plan: Plan, states: Sequence[RankState]) -> tuple[str, ...]:
    """What of a plan its ranks cannot report, each property once, with the reason."""
    rows = compare(plan, tuple(enumerate(states)))
    texts = []
    for row in rows:
        if row.seen is None and row.unknown is not None:
            texts.append(f"{row.what}: {row.expected} by the plan, not seen: {row.unknown}")
    return tuple(dict.fromkeys(texts))


def _of(ranks: Sequence[int], world: int) -> str:
    """The ranks that are meant, as words; empty if all of them are."""
    return "" if len(ranks) == world else f" of rank {', '.join(map(str, ranks))}"


def drift(figures: Sequence[Figures | None], ranks: int) -> str:
    """How the weights or learning rates of ranks differ, by their last reports.

    Empty if they do not, and until all of them have reported the same step.
    """
    reports = [report for report in figures if report is not None]
    steps = {report["step"] for report in reports}
    if len(reports) < ranks or len(steps) > 1:
        return ""
    first = reports[0]
    for number, other in enumerate(reports[1:], 1):
        apart = how_apart(other, first)
        if apart is not None:
            names = described(apart, first.get("names", ()), f"rank 0 and rank {number}")
            return f"after step {first['step']} {names}"
    return ""


def global_batch(states: Sequence[RankState]) -> int:
    """How many samples all ranks together take in one optimizer step."""
    return sum(map(_samples_of_rank, states))


def _samples_of_rank(state: RankState) -> int:
    if state.get("batch") and state.get("accumulation"):
        return int(state["batch"]) * int(state["accumulation"])
    return int(state["samples"])


def as_shown(
    workload: Workload,
    plan: Plan,
    states: Sequence[RankState],
    training: Training | None,
    waits: Sequence[float],
) -> Workload:
    """The workload, completed with the reports of the ranks of this plan.

    What the current launch trains, and how long its steps wait for data, are from its last run. The
    length of a training is only learnt from a user's script: recipes train on a part of their data.
    """
    first = states[0]
    # With another number of ranks the plan, not the script, decides how often they accumulate.
    accumulates_as_typed = plan.as_found or plan.world_size == 1
    trains_to_its_end = plan.as_found and workload.recipe is None
    observed = workload.observed(
        framework=first.get("framework"),
        global_batch_size=global_batch(states) if workload.batch_per_rank is None else None,
        parses_arguments=first.get("parses_arguments"),
        accumulation=first.get("accumulation") if accumulates_as_typed else None,
        optimizer=optimizer_of(first) if plan.as_found else None,
        model=first.get("model") if plan.as_found else None,
        data=first.get("dataset_samples") if trains_to_its_end else None,
        mapped_blocks=first.get("mapped_blocks") if plan.as_found else None,
        masks=masks_of(first) if plan.as_found else None,
        bf16_time=first.get("bf16_time") if plan.as_found else None,
        padding=padding_of(first) if plan.as_found else None,
        drawn=first.get("drawn") if plan.as_found else None,
        gradient_bytes=(first.get("gradient_bytes") or None) if plan.as_found else None,
        touched_bytes=first.get("touched_bytes") if plan.as_found else None,
        samples_to_end=samples_to_end(states) if trains_to_its_end else None,
        epochs=first.get("epochs") if trains_to_its_end else None,
    )
    if not plan.as_found:
        return observed
    if len(waits) > 2:  # the first step waits for the loader's workers to start
        share = round(min(1.0, median(waits[1:])), 4)
        observed = replace(observed, loading_share=share)
    return replace(observed, training=training or observed.training)


def _as_text(value: object) -> str | None:
    if value is None:
        return None
    return str(value) or "none"


def samples_to_end(states: Sequence[RankState]) -> int | None:
    """How many samples the whole training takes; None if the script does not say it."""
    first = states[0]
    epochs, there = first.get("epochs"), first.get("dataset_samples")
    if steps := first.get("steps_to_end"):
        return int(steps) * global_batch(states)
    if not (epochs and there):
        return None
    return round(epochs * there) or None


def with_model_answers(
    workload: Workload, model_answers: ModelAnswers | None, states: Sequence[RankState]
) -> Workload:
    """The workload with what its model has answered, in ranks with these states."""
    if model_answers is None:
        return workload
    padding = padding_of(states[0]) if states else workload.padding
    reason = model_answers.refuses("padding")
    if padding is not None and padding.kept is None and reason is not None:
        padding = replace(padding, kept=reason)
    return replace(workload, model_answers=model_answers, padding=padding)


def masks_of(state: RankState) -> Masks | None:
    """The masks of dropout that a rank saw; None if it saw none."""
    masks = state.get("masks")
    if masks is None:
        return None
    return Masks(**masks)


def padding_of(state: RankState) -> Padding | None:
    """How much of a rank's batches is padding, and why it stays; None if neither is known.

    For batches without a mask only the reason is known.
    """
    share = state.get("padding_share")
    kept = state.get("padding_unknown") or state.get("padding")
    if share is None and kept in (None, "cut", "may be cut"):
        return None
    kept = kept or "the model was not asked whether it may be cut"
    return Padding(
        share=share or 0.0,
        left=state.get("columns_left", 1.0),
        kept=None if kept == "may be cut" else kept.removeprefix("full, for "),
        mend=state.get("padding_mend"),
    )


def fed_with(recipe: Recipe | None) -> str:
    """What the trials were fed with, in words."""
    if recipe is None:
        return "the script's own data"
    made = "images" if recipe.task == "image-classification" else "tokens"
    return f"synthetic {made}"


_ALL_SHOWN = tuple(chain.from_iterable(knob.shown for knob in KNOBS))

# The keys of a rank's state that a result keeps: those that show a knob, who the rank is and
# what it trains.
_KEPT = frozenset(shown.key for shown in _ALL_SHOWN) - {
    "environment",
    "mapped",
} | {
    "applied",
    "rank",
    "local_rank",
    "preload",
    "framework",
    "parses_arguments",
    "batch",
    "samples",
    "padding_share",
    "columns_left",
    "products_rounded",
    "python",
    "pid",
    "peak_bytes",
}


# Variables that are the only sign of a knob in a rank.
_READ = frozenset(shown.what for shown in _ALL_SHOWN if shown.key == "environment")


def for_people(state: RankState) -> dict[str, object]:
    """A rank's state as a result has it: plain values, CPUs as the text of a list."""
    record: dict[str, object] = {}
    for name, value in state.items():
        if name in _KEPT:
            record[name] = value
    record["affinity"] = cpulist.render(state["affinity"])
    variables = {}
    for name, text in state.get("environment", {}).items():
        if name in _READ:
            variables[name] = text
    if variables:
        record["environment"] = variables
    record.update(state.get("versions", {}))
    return record


def refuse_impossible(workload: Workload, states: Sequence[RankState]) -> None:
    """Raise Infeasible if no plan can have the requested batch: too little data, or a loop over
    torch alone.
    """
    there, wanted = states[0].get("dataset_samples"), global_batch(states)
    if there is not None and there < wanted:
        raise Infeasible(
            f"{workload.name} has {there} samples to train on, and a step takes {wanted}: "
            "give it more data, or a smaller batch",
            hopeless=True,
        )
    if states[0].get("framework") != "pytorch":
        return
    for option, requested, taken in (
        ("--batch-per-rank", workload.batch_per_rank, wanted // len(states)),
        ("--global-batch-size", workload.global_batch_size, wanted),
    ):
        if requested not in (None, taken):
            raise Infeasible(
                f"{workload.name} has its own training loop, and a step takes {taken} samples: "
                f"{option} {requested} cannot be set in it, so change the script's own batch",
                hopeless=True,
            )
