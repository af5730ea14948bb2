"""Commands as ``tune`` prints them, ready to be pasted: the first of a study, and the next one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from cputune.cli._output import console, print_json
from cputune.documents import plain
from cputune.hidden import hide_arguments, without_password
from cputune.visible import visible
from cputune.workload import Workload

if TYPE_CHECKING:
    from cputune.tuner.space import SearchSpace


def print_space(
    space: SearchSpace, *, budget: int, most_seconds: float | None, as_json: bool
) -> None:
    """The plans that would be tried, what was left out and why, the first command, the time."""
    from cputune.report.length import time_lines
    from cputune.report.tuning import space_lines

    words = _first_command(space)
    if as_json:
        print_json(
            {
                "schema": "cputune.space/1",
                "plans": [plan.to_json() for plan in space.plans()],
                "knobs": {knob.name: list(knob.values) for knob in space.knobs},
                "left_out": plain(space.left_out),
                "first_command": words,
            }
        )
        return
    out = console()
    for line in space_lines(space):
        out.print(visible(line))
    out.print(f"first: {space.baseline.describe()}")
    out.print(f"  {words}", soft_wrap=True)  # what is wrapped cannot be pasted
    for line in time_lines(space, budget, most_seconds):
        out.print(line)


def _first_command(space: SearchSpace) -> str:
    """The baseline's command as the first trial runs it, ready to be pasted into a shell."""
    from cputune.carrier.command import carried, trial_command
    from cputune.report.commands import for_shell

    if space.workload.launch:
        return for_shell(space.workload, space.workload.launch)
    versions = {p.name: p.version for p in space.facts.packages if p.version is not None}
    way = carried(space.workload, space.baseline, versions)
    python = "python3" if space.facts.recorded else sys.executable
    words = trial_command(space.workload, way)
    return f"{shlex.quote(python)} {for_shell(space.workload, words)}"


def again(ctx: click.Context, job: Workload, script: Sequence[str]) -> str:
    """The command that was typed, with --resume, without --force, its secrets as variables.

    What a file or a variable has set is set again without a word.
    """
    from cputune.report.commands import for_shell

    above = [] if ctx.parent is None else _typed(ctx.parent)
    words = ["cputune", *above, "tune", "--resume", *_typed(ctx)]
    command = shlex.join(words)
    return f"{command} -- {for_shell(job, hide_arguments(script)[0])}" if script else command


def _typed(ctx: click.Context) -> list[str]:
    """The options of this command that stood on the command line, but --force and --resume."""
    words: list[str] = []
    for option in ctx.command.params:
        name = option.name or ""
        typed = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not isinstance(option, click.Option) or not typed or name not in ctx.params:
            continue
        word, value = max(option.opts, key=len), ctx.params[name]
        if option.is_flag:
            words += [] if name in ("force", "resume") else [word]
        else:
            for one in value if option.multiple else (value,):
                words += [word, without_password(one) if name == "storage" else str(one)]
    return words
