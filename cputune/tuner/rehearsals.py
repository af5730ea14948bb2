"""The whole script is run once with each number of ranks that may be recommended.

A rehearsal (``cputune.ranks.rehearsal``) shows whether its evaluation, saving and end work with
another number of ranks than yours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cputune.plans.knobs.record import LeftOut
from cputune.plans.plan import Plan
from cputune.records.result import LEAST_BLOCKS
from cputune.records.steps import RehearsalEnd, RehearsingRunner, Runner
from cputune.text.plain import count
from cputune.tuner.events import Message
from cputune.tuner.measuring import Findings, Measuring
from cputune.tuner.spending import block_seconds

# Time limit of a rehearsal, in starts and steps of the baseline.
LEAST_SECONDS = 90.0
STARTS, STEPS = 6, 40


def rehearsed(
    measuring: Measuring,
    runner: Runner,
    ranked: Sequence[Plan],
    typed_ranks: int,
    chosen: Callable[[Sequence[Plan]], Sequence[Plan]],
) -> list[Plan]:
    """The plans without the numbers of ranks with which the whole script fails.

    Only plans that ``chosen`` selects for the comparison are rehearsed, the best first.
    """
    plans, rehearsed_ranks = list(ranked), {typed_ranks}
    while isinstance(runner, RehearsingRunner) and plans:
        plan = next(
            (plan for plan in chosen(plans) if plan.world_size not in rehearsed_ranks), None
        )
        if plan is None:
            break
        ranks = plan.world_size
        rehearsed_ranks.add(ranks)
        reason = _rehearse(measuring, runner, plan)
        if reason:
            measuring.findings.unfit[ranks] = reason
            text = f"plans of {count(ranks, 'rank')} are left out from now on; {reason}"
            measuring.on_event(Message(text=text, warns=True))
            plans = [other for other in plans if other.world_size != ranks]
    return plans


def _rehearse(measuring: Measuring, runner: RehearsingRunner, plan: Plan) -> str | None:
    """Why the ranks of a plan must not be used; None or empty if they may be."""
    expected = STARTS * measuring.slowest_start_seconds + STEPS * measuring.step_seconds
    longest = max(LEAST_SECONDS, expected)
    if measuring.timer.most_seconds is not None:
        steps = (measuring.step_seconds, measuring.settled.get(plan, measuring.step_seconds))
        block = block_seconds(measuring, steps)
        longest = min(longest, measuring.timer.left(1.0) - LEAST_BLOCKS * block)
    if longest < 2 * measuring.slowest_start_seconds:
        return "the time limit is too short to run the whole script with them (--max-time)"
    text = f"running the whole script with {plan.world_size} ranks, shortened"
    measuring.on_event(Message(text=text))
    end = runner.rehearse(plan, longest)
    if end is None:
        return None
    if end.failed:
        return f"the whole script, shortened, fails with them: {end.failed}"
    measuring.findings.notes.append(_note(end, plan.world_size))
    return None


def _note(end: RehearsalEnd, ranks: int) -> str:
    """What was rehearsed, with its limit."""
    if end.not_run:
        return (
            f"The whole script was not rehearsed {end.not_run}: with {ranks} ranks its evaluation, "
            "its saving and its end were not run."
        )
    text = f"With {ranks} ranks the whole script was run, shortened to a few steps: it ended well"
    if not end.compared:
        return f"{text}. What it wrote was not compared with what your current launch writes."
    written = [kind for kind in end.compared if kind != "weights"]
    listed = written[-1]
    if len(written) > 1:
        listed = f"{', '.join(written[:-1])} and {listed}"
    weights, left_out = "", []
    if "weights" in end.compared:
        weights = ", with the same weights but for rounding"
    else:
        left_out.append("weights")
    if "metrics" not in written:
        left_out.append("values of metrics")
    text = f"{text}{weights}, and wrote the same {listed} as your current launch."
    if not left_out:
        return text
    return f"{text} Not compared: {' and '.join(left_out)}."


def left_out(findings: Findings) -> tuple[LeftOut, ...]:
    """The numbers of ranks that were not compared, and why."""
    left_out = []
    for ranks, reason in findings.unfit.items():
        left_out.append(LeftOut(what=f"ranks={ranks}", why=reason))
    return tuple(left_out)
