"""What the options of ``tune`` ask for: a job, knobs held at a value, a time, a database."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec

import click
from click.core import ParameterSource

from cputune.cli._output import tell
from cputune.errors import UsageError
from cputune.hidden import without_password
from cputune.script import read_typed, require_trainable
from cputune.workload import DEFAULT_RECIPE, Workload


def job_of(
    recipe: str | None,
    script: tuple[str, ...],
    batch_per_rank: int | None,
    global_batch_size: int | None,
) -> Workload:
    """The recipe or the script, with the batch that was asked for. Raises UsageError."""
    for name, value in (
        ("batch-per-rank", batch_per_rank),
        ("global-batch-size", global_batch_size),
    ):
        if value is not None and value < 1:
            raise UsageError(f"--{name} is a number of samples, 1 or more", hint=f"--{name} 8")
    if batch_per_rank is not None and global_batch_size is not None:
        raise UsageError(
            "--batch-per-rank and --global-batch-size exclude each other",
            hint="the first lets the batch grow with the ranks, the second keeps it",
        )
    if script:
        if recipe is not None:
            raise UsageError("give a recipe or a script, not both", hint="cputune tune -- train.py")
        for note in read_typed(script).notes:
            tell(f"note: {note}")
        own = Workload.script(
            script, global_batch_size=global_batch_size, batch_per_rank=batch_per_rank
        )
        require_trainable(own.argv)
        return own
    job = Workload.from_recipe(recipe or DEFAULT_RECIPE, batch_per_rank=batch_per_rank)
    if global_batch_size is not None:
        job = replace(job, global_batch_size=global_batch_size)
    return job


def fixed_values(texts: Iterable[str]) -> dict[str, str]:
    """What is held at which value: one value for each knob, or none would know which."""
    fixed: dict[str, str] = {}
    for name, value in map(_pair, texts):
        if fixed.setdefault(name, value) != value:
            raise UsageError(
                f"--fix holds {name} at {fixed[name]} and at {value}",
                hint=f"leave one of them out; --knobs {name} varies it",
            )
    return fixed


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UsageError(f"--fix takes NAME=VALUE, not {text!r}", hint="--fix precision=bf16")
    return name.strip(), value.strip()


_TIME = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")


def seconds_of(text: str) -> float:
    """Of a time such as 90s, 10m or 1h30m. Raises UsageError."""
    match = _TIME.fullmatch(text.strip().lower())
    if match is None or not any(match.groups()):
        raise UsageError(f"not a time: {text!r}", hint="--max-time 90s, 10m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if total == 0:
        raise UsageError("the time to tune must be above 0", hint="--max-time 10m")
    return float(total)


def require_shareable(ctx: click.Context, storage: str, study: str | None) -> None:
    """Refuse what is no address, and warn of a password that others see. Raises UsageError."""
    if study is not None:
        raise UsageError(
            "--study and --storage exclude each other",
            hint="the first is a file of this tuner alone, the second a database for several",
        )
    if find_spec("optuna") is not None:
        from cputune.tuner.database import parsed

        parsed(storage)
    typed = ctx.get_parameter_source("storage") is ParameterSource.COMMANDLINE
    if typed and without_password(storage) != storage:
        tell(
            "warning: every user of this machine can read a password that is typed (`ps`); "
            "PGPASSWORD, ~/.pgpass or CPUTUNE_TUNE_STORAGE keep it"
        )
