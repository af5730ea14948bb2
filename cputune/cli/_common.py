"""Options that every command has: -q and -v."""

from __future__ import annotations

import click

from cputune.cli._output import set_verbosity, tell, verbosity
from cputune.cli._settings import Settings


def add_common_options(command: click.Command) -> None:
    """Give a command -q and -v, once."""
    if any(option.name == "quiet" for option in command.params):
        return
    verbose = click.Option(
        ["-v", "--verbose"],
        count=True,
        expose_value=False,
        callback=_more,
        help="Say more: doctor tells stories, all log; -vv adds tracebacks to errors.",
    )
    quiet = click.Option(
        ["-q", "--quiet"],
        count=True,
        expose_value=False,
        callback=_less,
        help="Errors alone on stderr: no progress, no notes.",
    )
    command.params += [verbose, quiet]


def _more(ctx: click.Context, parameter: click.Parameter, count: int) -> int:
    if not ctx.resilient_parsing:
        set_verbosity(verbosity() + count)
    return count


def _less(ctx: click.Context, parameter: click.Parameter, count: int) -> int:
    """The last of a command's options: now it is known whether anybody wants to hear notes."""
    if ctx.resilient_parsing:
        return count
    if count:
        set_verbosity(-1)
    settings = ctx.find_root().obj
    if ctx.parent is not None and isinstance(settings, Settings):
        for note in settings.notes(ctx.info_name or ""):
            tell(f"note: {note}")
    return count
