"""The command line: parsing and printing, nothing else. One file per subcommand.

Subcommands are imported when they are used, so that ``cputune --help`` stays quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from cputune import __version__
from cputune.cli._output import print_traceback, report_error, set_color
from cputune.cli._streams import OutputError, drop_output, guard_streams
from cputune.errors import CannotError, CputuneError, Interrupted, UsageError

_SUBCOMMANDS = {
    # name: the line in `cputune --help`; the module is cputune/cli/NAME.py
    "doctor": "Say what is wrong with this machine for training, and how to mend it.",
    "tune": "Measure plans on this machine and find the fastest.",
    "emit": "Write the launch files that reproduce the tuned plan.",
    "run": "Train with the tuned plan here, now, in the foreground.",
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
def cli(color: str, verbose: int) -> None:
    """Find faults of a CPU training machine, tune training on it, emit the launch.

    \b
    cputune doctor
    cputune tune --budget 20
    cputune emit --format mpirun
    """
    set_color(color)


def _manner(words: Sequence[str]) -> tuple[int, bool]:
    """How often ``-v`` and whether ``--json`` is given, as click reads these words.

    Errors are told in this manner, mistakes in the words among them: what click does not
    know is passed over. Words after ``--`` are the script's.
    """
    options, rest = _options(cli, words)
    names = [number for number, word in enumerate(rest) if not word.startswith("-")]
    if not names:
        return options.get("verbose") or 0, False
    command = cli.get_command(click.Context(cli), rest[names[0]]) or _UNKNOWN
    told, _ = _options(command, rest[names[0] + 1 :])
    verbose = (options.get("verbose") or 0) + (told.get("verbose") or 0)
    return verbose, bool(told.get("as_json"))


def _options(command: click.Command, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    context = click.Context(command, resilient_parsing=True, ignore_unknown_options=True)
    options, rest, _ = command.make_parser(context).parse_args(list(words))
    return options, rest


_UNKNOWN = click.Command("unknown", params=[click.Option(["--json", "as_json"], is_flag=True)])
"""What a subcommand that does not exist is read as."""


def main() -> None:
    """The console script. Ends the process with the exit code of the contract."""
    guard_streams()
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
        verbose, as_json = _manner(sys.argv[1:])
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
    hint = None
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"`{error.ctx.command_path} --help` shows what can be given"
    kind = UsageError if error.exit_code == UsageError.exit_code else CannotError
    return kind(error.format_message(), hint=hint)
