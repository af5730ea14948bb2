"""The command line: parsing and printing, nothing else. One file per subcommand.

Subcommands are imported when they are used, so that ``cputune --help`` stays quick.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click

from cputune import __version__
from cputune.cli._output import report_error, set_color, survive_any_character
from cputune.errors import CputuneError, Interrupted

_SUBCOMMANDS = {
    # name: the line in `cputune --help`; the module is cputune/cli/NAME.py
    "doctor": "Say what is wrong with this machine for training, and how to mend it.",
    "tune": "Measure plans on this machine and find the fastest.",
    "emit": "Write the launch files that reproduce the tuned plan.",
    "verify": "Hand launch files to their real consumers and say what they did.",
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
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_SUBCOMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cputune")
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Beats NO_COLOR, which beats FORCE_COLOR, which beats the terminal.",
)
@click.option("-v", "--verbose", count=True, help="Say more; -vv adds tracebacks to errors.")
@click.pass_context
def cli(ctx: click.Context, color: str, verbose: int) -> None:
    """Find faults of a CPU training machine, tune training on it, emit the launch.

    \b
    cputune doctor
    cputune tune --budget 20
    cputune emit --format mpirun
    """
    ctx.obj = {"verbose": verbose}
    set_color(color)


def main() -> None:
    """The console script. Ends the process with the exit code of the contract."""
    survive_any_character()
    verbose = sum(arg.count("v") for arg in sys.argv[1:] if arg.strip("-v") == "" and "v" in arg)
    as_json = "--json" in sys.argv[1:]
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except click.Abort:
        report_error(Interrupted("interrupted"), as_json=as_json)
        code = Interrupted.exit_code
    except click.ClickException as error:
        hint = None
        if isinstance(error, click.UsageError) and error.ctx is not None:
            hint = f"`{error.ctx.command_path} --help` shows what can be given"
        report_error(CputuneError(error.format_message(), hint=hint), as_json=as_json)
        code = error.exit_code
    except KeyboardInterrupt:
        report_error(Interrupted("interrupted"), as_json=as_json)
        code = Interrupted.exit_code
    except BrokenPipeError:
        # The reader of our output went away (`cputune doctor | head`); nothing to say.
        sys.stderr.close()
        code = 141
    except CputuneError as error:
        if verbose >= 2:
            raise
        report_error(error, as_json=as_json)
        code = error.exit_code
    sys.exit(code if isinstance(code, int) else 0)
