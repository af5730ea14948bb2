"""What an artefact says of itself: which machine was measured, how fast, what is extrapolated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import metadata

from cputune.emitters.checked_words import comment
from cputune.emitters.command import PLAN_FILE
from cputune.emitters.format import LaunchJob
from cputune.emitters.from_result import Tuned
from cputune.emitters.manifest import PLAN
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.records.claims import InContext, machine_name
from cputune.text.plain import count, figure

TRAINING_PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "intel_extension_for_pytorch",
    "oneccl_bind_pt",
)


def full(job: LaunchJob, format: str, title: str, notes: Iterable[str] = ()) -> str:
    """The header of a document; an annotation has its plan."""
    return header_of(job, format, title, notes)


def header_of(job: LaunchJob, format: str, title: str, notes: Iterable[str] = ()) -> str:
    """The header of an artefact's main file: plan, gain, date, and how to make it again."""
    lines = [f"{title} Written by cputune {_version()}.", *job.header]
    for note in (*job.notes, *notes):
        lines.append(f"Note: {note}")
    kept = list[str]()
    for line in lines:
        # What is extrapolated stays, however long the version in the first line is.
        if line in job.speed.printed_notes or comment([*kept, line]).count("\n") <= MOST_LINES:
            kept.append(line)
    return comment(kept)


# Lines of a header, without the one that names the plan. Notes are printed and in plan.json.
MOST_LINES = 7


def _needs(job: LaunchJob) -> str:
    """Whether cputune must be installed for a launch, or is copied."""
    if job.force is None and job.plan.world_size == 1:
        return ""
    if not job.self_contained:
        return " (needs cputune in the Python that trains, see emit --self-contained)"
    return " (self-contained: needs no cputune)"


def promised(job: LaunchJob, format: str) -> str:
    """The line for `cputune verify`: the format, and the file with the plan."""
    return f"# {PLAN}: {format}, {PLAN_FILE}{_needs(job)}\n"


def measured(tuned: Tuned, plan: Plan, in_context: InContext) -> tuple[str, ...]:
    """What was measured of a plan, in the context of a launch.

    ``plan`` is the one that is written. In another context than that of the measurement no ratio is
    given.
    """
    if not in_context.applies:
        return (f"M{in_context.not_measured[1:]}.", f"Plan: {plan.describe()}.")
    lines = [
        f"{tuned.means} How sure: {tuned.sure}",
        f"Plan: {plan.describe()}.",
        f"Measured {in_context.measured}: {_speed(tuned)}.",
        *tuned.ladder,
    ]
    if tuned.plan.as_found:
        reason = "No plan beat plain `python train.py` beyond noise"
        if not tuned.compared:
            reason = "No plan was compared with plain `python train.py`"
        if tuned.disturbed:
            reason = "The machine was not quiet, no plan is known to beat plain `python train.py`"
        lines.insert(2, f"{reason}: this is that launch.")
    return tuple(lines)


def unmeasured(
    host: Mapping[str, object], plan: Plan, *, is_named: bool = False, own_loop: bool = False
) -> tuple[str, ...]:
    """The header without a result.

    ``is_named``: the user named this plan; ``own_loop``: a script with its own training loop gets
    what changes none of its numbers.
    """
    guides = "a rank per socket, all its cores, the precision its hardware has"
    whose = f"the default plan of the Hugging Face CPU guides ({guides})"
    if own_loop:
        whose = "one rank on all cores, which changes no number of a training loop of its own,"
    if is_named:
        whose = "a plan that was asked for,"
    return (
        f"NOTHING WAS MEASURED. This is {whose} for {machine_name(host)}.",
        "Do now: cputune tune, which finds out what is fastest",
        f"Plan: {plan.describe()}.",
    )


def with_another_plan(job: LaunchJob, plan: Plan) -> tuple[str, ...]:
    """The header if ``plan`` takes the place of the job's: no ratio was measured of it."""
    if job.speed.claim is not None:
        claimed = job.speed.claim.in_context(replace(job.speed.context, plan=plan))
        if not claimed.applies:
            lines = (f"M{claimed.not_measured[1:]}.", f"Plan: {plan.describe()}.")
            return lines + job.speed.printed_notes
    before, now = (f"Plan: {one.describe()}." for one in (job.plan, plan))
    return tuple(now if line == before else line for line in job.header)


def _speed(tuned: Tuned) -> str:
    value = tuned.samples_per_second
    speed = f"{figure(value.centre, 4)} samples/s"
    if not tuned.compared:
        return f"{speed} in a single trial"
    return f"{speed} (95 % interval {figure(value.low, 4)} to {figure(value.high, 4)})"


def _version() -> str:
    try:
        return metadata.version("cputune")
    except metadata.PackageNotFoundError:
        return "from a checkout"


def scale_lines(tuned: Tuned | None, plan: Plan, workload: Workload) -> tuple[str, ...]:
    """Of a job on several nodes, or on others than were measured: who takes how many samples."""
    now = _scale(plan, workload)
    if tuned is None or plan.nodes == tuned.plan.nodes:
        return (f"Batch: {now}.",) if plan.nodes > 1 else ()
    lines = [
        f"Extrapolated: {now}. Measured: {_scale(tuned.plan, tuned.workload)}, "
        f"nothing on {count(plan.nodes, 'node')}."
    ]
    before = tuned.workload.samples_of_step(tuned.plan.world_size)
    after = workload.samples_of_step(plan.world_size)
    if None not in (before, after) and before != after:
        lines.append(f"The global batch is {after}, {before} were measured: another training.")
    return tuple(lines)


def _scale(plan: Plan, workload: Workload) -> str:
    """How large a job is: ``2 nodes, 8 ranks with 12 samples each, 96 together``."""
    size = f"{count(plan.nodes, 'node')}, {count(plan.world_size, 'rank')}"
    together = workload.samples_of_step(plan.world_size)
    if together is None:
        return f"{size} that share the script's own batch"
    each = f"{size} with {count(together // plan.world_size, 'sample')}"
    if plan.world_size == 1:
        return each
    return f"{each} each, {together} together"
