"""The trials of a result as a table: one row for each, the same columns wherever it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cputune import cpulist
from cputune.knobs import KNOBS

if TYPE_CHECKING:
    from cputune.result import Result, Trial

Cell = int | float | str | bool | None
"""What stands in the table; None is what is not known, or does not apply."""

_OF_TRIAL: Mapping[str, tuple[str, Callable[[Trial], Cell]]] = {
    # column: (what it says, how it is read)
    "trial": ("number, in the order they were run, from 0", lambda t: t.number),
    "state": ("`completed`, `pruned` or `failed`", lambda t: t.state),
    "kind": ("which failure it was", lambda t: t.kind),
    "reason": ("why it was pruned, or failed", lambda t: t.reason),
    "origin": ("who proposed it: `baseline`, `guide`, `topology`, `sampler`", lambda t: t.origin),
    "samples_per_second": (
        "of the whole job, the median; of a pruned trial no more than a guess",
        lambda t: None if t.samples_per_second is None else t.samples_per_second.median,
    ),
    "low": (
        "lower end of its 95 % interval",
        lambda t: None if t.samples_per_second is None else t.samples_per_second.low,
    ),
    "high": (
        "upper end of its 95 % interval",
        lambda t: None if t.samples_per_second is None else t.samples_per_second.high,
    ),
    "at_most_samples_per_second": (
        "of a pruned trial all that is known",
        lambda t: t.at_most_samples_per_second,
    ),
    "steps": ("optimizer steps that were measured", lambda t: t.steps),
    "delayed_steps": ("those that others on the machine delayed", lambda t: t.delayed_steps),
    "warmup_steps": ("those that were still getting faster", lambda t: t.warmup_steps),
    "step_seconds": ("seconds of all its steps, warm-up included", lambda t: t.step_seconds),
    "plan": ("the plan in words", lambda t: t.plan.describe()),
    "as_found": ("whether it is the launch of today", lambda t: t.plan.as_found),
    "nodes": ("machines", lambda t: t.plan.nodes),
    "ranks": ("training processes on each", lambda t: t.plan.processes_per_node),
    "threads": ("OpenMP threads of each rank", lambda t: t.plan.threads_per_process),
    "cpus": (
        "logical CPUs of each rank, ranks apart by `/`; nodes that differ apart by a space",
        lambda t: " ".join(
            "/".join(cpulist.render(cpus) for cpus in lists)
            for lists in t.plan.node_cpus or (t.plan.cpus,)
        ),
    ),
    "backend": (
        "of torch.distributed; means nothing for a single rank",
        lambda t: t.plan.backend,
    ),
    "ccl_workers": ("oneCCL worker threads of a rank", lambda t: t.plan.ccl_workers),
    "elsewhere": (
        "whether another tuner of a shared study has measured it: its speed is scaled to here",
        lambda t: t.elsewhere,
    ),
}
_KNOBS = tuple(knob for knob in KNOBS if knob.put is not None)

COLUMNS: Mapping[str, str] = {
    **{name: said for name, (said, _) in _OF_TRIAL.items()},
    "best": "whether its plan is the recommendation",
    **{knob.name: knob.summary for knob in _KNOBS},
}
"""Every column in its order, and what it says. New ones are added at the end of their group."""


def trial_rows(result: Result) -> list[dict[str, Cell]]:
    """One row for each trial, in the order they were run."""
    return [
        {
            **{name: read(trial) for name, (_, read) in _OF_TRIAL.items()},
            "best": trial.plan == result.best.plan,
            **{knob.name: trial.plan.value(knob.name) for knob in _KNOBS},
        }
        for trial in result.trials
    ]


def frame_of(result: Result) -> Any:
    """The rows as a pandas DataFrame. Raises MissingPackageError without pandas."""
    try:
        import pandas
    except ImportError as error:
        from cputune.errors import MissingPackageError

        raise MissingPackageError(
            "a table needs pandas, which is not installed", hint="pip install 'cputune[frame]'"
        ) from error
    return pandas.DataFrame(trial_rows(result), columns=list(COLUMNS))
