"""What torch.compile takes at the start of a run, and after how many steps that is won back."""

from __future__ import annotations

from cputune.knobs.compile import compiled
from cputune.result import COMPLETED, Result


def compile_notes(result: Result) -> tuple[str, ...]:
    """For a result whose best plan compiles: the time it takes, and what becomes of it."""
    seconds = max((t.compile_seconds for t in result.trials if compiled(t.plan)), default=0.0)
    if not compiled(result.best.plan) or not seconds:
        return ()
    takes = f"torch.compile takes {seconds:.0f} s at the start of a run"
    if result.steps_planned is not None:
        return (
            f"{takes}; it is spread over the {result.steps_planned:,} steps that are planned, "
            "and so in every speed.",
        )
    saved = _saved_seconds(result)
    if saved <= 0:
        return (f"{takes}; that its steps win this back is not seen.",)
    return (
        f"{takes}, which its steps win back after about {max(1, round(seconds / saved)):,} of them "
        "(--steps-planned N takes it into account).",
    )


def _saved_seconds(result: Result) -> float:
    """How much shorter a step is than that of the same plan, not compiled.

    As the confirmation has shown it; else beside the fastest trial that was not compiled.
    """
    after = result.best.samples_per_second.median
    alone = next((one.speedup.ratio for one in result.worth if one.knob == "compile"), None)
    others = [
        trial.samples_per_second.median
        for trial in result.trials
        if trial.state == COMPLETED and trial.samples_per_second and not compiled(trial.plan)
    ]
    before = max(others, default=after) if alone is None else after / alone
    job = result.workload
    samples = job.global_batch_size or (job.batch_per_rank or 1) * result.best.plan.world_size
    return samples * (1 / before - 1 / after)
