"""The command line: parsing and printing, nothing else. One file per subcommand.

Subcommands are imported when they are used, so that ``cputune --help`` stays quick.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from cputune.cli._common import add_common_options
from cputune.cli._manner import manner
from cputune.cli._output import print_traceback, report_error, set_color, set_verbosity
from cputune.cli._settings import (
    Settings,
    name_variables,
    read_settings,
    refuse_unknown_variables,
    variable_behind,
)
from cputune.cli._streams import OutputError, drop_output, guard_streams
from cputune.errors import CannotError, CputuneError, Interrupted, UsageError

_SUBCOMMANDS = {
    # name: the line in `cputune --help`; the module is cputune/cli/NAME.py
    "doctor": "Say what is wrong with this machine for training, and how to mend it.",
    "tune": "Measure plans on this machine and find the fastest.",
    "show": "Show a result: the verdict, what to change, the launch, the plans.",
    "compare": "Compare results: same machine, same work, and how much faster?",
    "history": "List the results of earlier studies.",
    "emit": "Write the launch files that reproduce the tuned plan.",
    "run": "Train with the tuned plan here, now, in the foreground.",
    "verify": "Hand launch files to their real consumers and say what they did.",
    "report": "Write a result as one page for a browser, with pictures.",
    "config": "Show every option's default, and which file or variable says so.",
    "recipes": "List the workloads that can be tuned on.",
    "completion": "Print the completion script for bash, zsh or fish.",
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _SUBCOMMANDS:
            return None
        command = import_module(f"cputune.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        add_common_options(command)
        name_variables(command, cmd_name)
        if isinstance(ctx.obj, Settings):
            refuse_unknown_variables(command, cmd_name, os.environ)
            defaults = {**(ctx.default_map or {}), cmd_name: ctx.obj.defaults(command, cmd_name)}
            ctx.default_map = defaults
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_SUBCOMMANDS.items()))


def _read_settings(ctx: click.Context, parameter: click.Parameter, config: str | None) -> None:
    """Before any other option is read: what files say of them."""
    if ctx.resilient_parsing:  # completion
        return
    ctx.obj = read_settings(config, os.environ, _SUBCOMMANDS)
    ctx.default_map = ctx.obj.defaults(ctx.command, "")


def _print_version(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from cputune import __version__

        click.echo(f"cputune {__version__}")
        ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.option(
    "--config",
    metavar="FILE",
    envvar="CPUTUNE_CONFIG",
    is_eager=True,
    expose_value=False,
    callback=_read_settings,
    help="Defaults of options, in place of the usual files; none reads no file.",
)
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Beats NO_COLOR, which beats FORCE_COLOR, which beats the terminal.",
)
def cli(color: str) -> None:
    """Find faults of a CPU training machine, tune training on it, emit the launch.

    \b
    cputune doctor
    cputune tune --budget 20
    cputune emit --format mpirun
    """
    set_color(color)


add_common_options(cli)
name_variables(cli, "")


def main() -> None:
    """The console script. Ends the process with the exit code of the contract."""
    guard_streams()
    set_verbosity(0)
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except OutputError as error:
        drop_output()
        # Where the reader went away (`cputune doctor | head`) there is nothing to say.
        code = error.exit_code if error.exit_code == 141 else report_error(error)
    except (CputuneError, click.Abort, click.ClickException, KeyboardInterrupt, OSError) as error:
        verbose, as_json = manner(cli, sys.argv[1:])
        if verbose >= 2:
            print_traceback(error)
        code = report_error(_of_ours(error), as_json=as_json)
    sys.exit(code if isinstance(code, int) else 0)


def _of_ours(error: BaseException) -> CputuneError:
    """An error of click's or of the system as one of ours; what else arrives is an interrupt."""
    if isinstance(error, CputuneError):
        return error
    if isinstance(error, OSError):
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return CannotError(
            f"the system refuses: {place}{error.strerror or error}",
            hint="`cputune -vv` and the same words show where",
        )
    if not isinstance(error, click.ClickException):
        return Interrupted("interrupted")
    hint, said = None, error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"`{error.ctx.command_path} --help` shows what can be given"
    if isinstance(error, click.BadParameter) and (variable := variable_behind(error)):
        said = f"{variable}: {said}"
    kind = UsageError if error.exit_code == UsageError.exit_code else CannotError
    return kind(said, hint=hint)
