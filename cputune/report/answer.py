"""The answer of a result in 24 lines of 80 columns: ``cputune show``, and the end of ``tune``.

In the order of the questions: what was measured, what to do, what it costs in the training, how
sure it is, what would make it surer. The rest is in ``cputune show --all``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from cputune.plans.knobs import KNOBS, kind_of, knob_named
from cputune.plans.knobs.record import KINDS, Kind
from cputune.plans.plan import Plan
from cputune.records.claims import FASTER, factor, machine_name
from cputune.records.ladder import changes_between, checked
from cputune.records.next_command import KEEP_THE_LAUNCH
from cputune.records.result import Result
from cputune.records.shared_texts import OTHERS_MAY_BE_FASTER
from cputune.report.show import ResultToShow, blocks, changes_of, launch_commands
from cputune.report.study_table import speed_text
from cputune.report.writing import Block, Labelled, print_blocks
from cputune.text.plain import count
from cputune.tuner.changes import LAYOUT

# At 80 columns, unless a command has several lines.
MOST_LINES = 24

# The longest label has this width; all blocks begin in the same column.
_WIDTH = 9

COST_WORDS: dict[Kind, str] = {
    "touches nothing": "the same numbers",
    "same mathematics": "the same mathematics",
    "other numbers": "other numbers",
}

NOT_ALONE = "not measured alone"
_MOST_UNTRIED = 2  # gains that are shown

Pairs = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The changes of one kind, in words, and the gain of all changes up to this kind."""

    kind: Kind
    changes: str
    gain: str


def end_blocks(shown: ResultToShow) -> Iterator[Block]:
    """The answer, which ``tune`` prints at its end, too."""
    yield _block(_measured(shown), strong=True)
    yield _block(_to_do(shown))
    costs = _training(shown)
    if costs:
        yield _block(costs)
    yield _block(_sure(shown))
    untried = _untried(shown)
    if untried:
        yield _block(untried)
    if shown.file:  # it was stored
        yield _block(_more(shown))


_PASTED = ("Do now", "or", "Surer", "page", "all of it", "$")


def _block(rows: Pairs, *, strong: bool = False) -> Labelled:
    labelled = [(label.ljust(_WIDTH), text) for label, text in rows]
    return Labelled(
        rows=tuple(labelled),
        pasted=tuple(label.ljust(_WIDTH) for label in _PASTED),
        strong=rows[0][1] if strong else None,
    )


def _measured(shown: ResultToShow) -> Pairs:
    result = shown.result
    rows = [("Result", shown.verdict().means)]
    if result.claim.in_context(shown.context).applies:
        rows.append(("Measured", _on_what(result)))
    else:  # the verdict names what it was measured on
        rows.append(("Measured", ""))
    baseline = speed_text(result, result.baseline)[0]
    if result.best.plan != result.baseline.plan:
        name = "perhaps faster" if result.disturbed else "the best plan"
        best = speed_text(result, result.best)[0]
        rows.append(("", f"{baseline} samples/s with your launch, {best} with {name}:"))
        rows.append(("", plan_words(result.best.plan)))
    elif baseline != "–":
        rows.append(("", f"{baseline} samples/s with your launch: {plan_words(result.best.plan)}"))
    if not rows[1][1]:
        rows[1:3] = [("Measured", text) for _, text in rows[2:3]]
    rows += [("note", warning) for warning in shown.warnings()]
    if result.earlier is not None:
        rows.insert(1, ("Since", result.earlier.text(result.speedup)))
    return rows


def plan_words(plan: Plan) -> str:
    """``2 ranks with 14 threads, bf16, tcmalloc``."""
    parts = [_layout(plan)]
    for knob in KNOBS:
        text = knob.description(plan)
        if text is not None and knob.name != "threads":  # which names the ranks, too
            parts.append(text)
    return ", ".join(parts)


def _layout(plan: Plan) -> str:
    if plan.nodes > 1:
        return plan.layout_words()
    ranks, threads = plan.processes_per_node, plan.threads_per_process
    return f"{count(ranks, 'rank')} with {count(threads, 'thread')}"


def _on_what(result: Result) -> str:
    parts = [result.workload.name]
    if result.workload.global_batch_size:
        parts.append(f"{result.workload.global_batch_size} samples per step")
    if machine := machine_name(result.host):
        parts.append(machine)
    if result.created:
        parts.append(result.created[:10])
    return ", ".join(parts)


def _to_do(shown: ResultToShow) -> Pairs:
    result, verdict = shown.result, shown.verdict()
    if verdict.when:
        return [("Do", f"{verdict.when}:"), ("$", verdict.do)]
    if verdict.do == KEEP_THE_LAUNCH:
        return [("Do", verdict.do)]
    rows = [("Do now", verdict.do)]
    if shown.file and verdict.good and shown.elsewhere is None:
        files = launch_commands(
            shown.file, result.best.plan.nodes, shown.facts, through=result.through
        )[1]
        if files != verdict.do:
            rows.append(("or", f"{files}   # as files"))
    return rows


def costs_of(result: Result) -> tuple[Cost, ...]:
    """What the best plan changes in the training, by kind, the least first."""
    if result.speedup is None or result.best.plan == result.baseline.plan:
        return ()
    costs = []
    before = result.baseline.plan
    for rung in result.rungs:
        gain = NOT_ALONE
        if rung.speedup.narrow:
            gain = factor(rung.speedup)
            if rung.speedup.outcome != FASTER:
                gain += f" {rung.speedup.outcome}"
        changes = ", ".join(changes_between(before, rung.plan, rung.kind))
        costs.append(Cost(kind=rung.kind, changes=changes, gain=gain))
        before = rung.plan
    if costs:
        return tuple(costs)
    # An older result, or a plan of a single kind.
    by_kind: dict[Kind, list[str]] = {}
    for change in changes_of(result):
        for name in change.knob.split(", "):
            knob = "ranks" if name == LAYOUT else name
            by_kind.setdefault(kind_of(knob_named(knob)), [])
        last = change.knob.split(", ")[-1]
        kind = kind_of(knob_named("ranks" if last == LAYOUT else last))
        if change.knob == LAYOUT:
            by_kind[kind].append(_layout(result.best.plan))
        else:
            by_kind[kind].append(f"{change.knob} {change.best}")
    kinds = [kind for kind in KINDS if by_kind.get(kind)]
    for kind in kinds:
        gain = factor(result.speedup) if kind == kinds[-1] else NOT_ALONE
        costs.append(Cost(kind=kind, changes=", ".join(by_kind[kind]), gain=gain))
    return tuple(costs)


def cost_lines(result: Result) -> Iterator[str]:
    """``the same numbers: allocator tcmalloc; ×1.17 (1.10–1.25)``, and what was checked."""
    before = False
    for cost in costs_of(result):
        words = COST_WORDS[cost.kind]
        if cost.gain == NOT_ALONE:
            yield f"{words}: {cost.changes} ({NOT_ALONE})"
        elif before:
            yield f"{words}: {cost.changes}; with all above {cost.gain}"
        else:
            yield f"{words}: {cost.changes}; {cost.gain}"
        before = True
        if cost.kind == "same mathematics":
            yield checked(result.workload)


def _training(shown: ResultToShow) -> Pairs:
    """What the best plan costs in the training; nothing if it is not recommended."""
    result = shown.result
    if result.disturbed or result.speedup is None or result.speedup.outcome != FASTER:
        return []
    costs = costs_of(result)
    rows: Pairs = []
    for line in cost_lines(result):
        rows.append(("" if rows else "Training", line))
    if len(costs) > 1 and result.rungs and shown.file and shown.elsewhere is None:
        keep = "numbers"
        if costs[-2].kind == "same mathematics":
            keep = "mathematics"
        rows.append(("or", f"{shown.command(f'run --keep {keep}')}   # keeps the {keep}"))
    return rows


def _sure(shown: ResultToShow) -> Pairs:
    result, verdict = shown.result, shown.verdict()
    rows = [("How sure", verdict.sure)]
    if result.speedup is None or shown.elsewhere is not None or verdict.when:
        return rows
    if shown.file and result.best.plan.nodes == 1 and result.best.plan != result.baseline.plan:
        again = f"cputune compare {shlex.quote(shown.file)}"
        rows.append(("Surer", f"{again}   # both again, side by side, 3 minutes"))
    costs = costs_of(result)
    if verdict.good and costs and costs[-1].kind == "other numbers":
        rows.append(
            ("", "not measured: how well it learns with other numbers; compare an evaluation")
        )
    return rows


def _untried(shown: ResultToShow) -> Pairs:
    """What was not tried and may be faster; first the plans for which the time was too short."""
    rows: Pairs = []
    for note in shown.result.notes:
        what, says, command = note.partition(OTHERS_MAY_BE_FASTER)
        if says:
            rows = [("Not tried", f"{what[:1].lower()}{what[1:]}"), ("$", command)]
    for gain in shown.result.untried[:_MOST_UNTRIED]:
        label = "" if rows else "Not tried"
        if gain.takes == "one command":
            rows += [(label, gain.gain), ("$", gain.do)]
        else:
            rows.append((label, gain.text))
    return rows


def _more(shown: ResultToShow) -> Pairs:
    rows = [("all of it", shown.command("show --all")), ("page", shown.command("report"))]
    if shown.result.notes:
        notes = count(len(shown.result.notes), "note")
        rows[0] = ("all of it", f"{rows[0][1]}   # with {notes}")
    return rows


def show(result: Result, *, every: bool = False) -> None:
    """Print the answer as ``cputune show`` does. With ``every``, print all of the result."""
    from rich.console import Console

    console = Console(highlight=False, emoji=False, markup=False)
    shown = ResultToShow(result=result)
    if every:
        print_blocks(blocks(shown), console)
    else:
        print_blocks(end_blocks(shown), console)
