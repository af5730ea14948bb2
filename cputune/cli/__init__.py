"""The command line: parsing and printing only.

Subcommands are imported when they are used, so that ``cputune --help`` is fast.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
from collections.abc import Collection
from importlib import import_module
from typing import NoReturn

import click

from cputune.cli.option_defaults import common_options, place_of, read_settings
from cputune.cli.output import (
    guard_streams,
    lose,
    print_traceback,
    report_error,
    set_json,
    set_verbosity,
    verbosity,
)
from cputune.cli.signals import interrupted_by
from cputune.errors import CannotError, CputuneError, Interrupted, UsageError

_SUBCOMMANDS = {
    # name: (module.function below cputune.cli, line in `cputune --help`)
    "doctor": ("doctor.command", "Find what is wrong with this machine for training, and the fix."),
    "tune": ("tune.command", "Measure plans on this machine and find the fastest."),
    "show": ("results.show", "Show a result: what was measured, what to do, how sure it is."),
    "compare": (
        "results.compare",
        "Measure the best plans of two results side by side.",
    ),
    "history": ("results.history", "List the results of earlier studies."),
    "emit": ("emit.command", "Write the files that launch the tuned plan."),
    "run": ("run.command", "Train with the tuned plan on this machine."),
    "prove": ("prove.command", "Check which knobs keep the training of your command the same."),
    "verify": ("verify.command", "Run launch files for a few steps and check what they do."),
    "report": ("results.report", "Write a result as one page for a browser."),
    "config": ("option_defaults.config", "Show the default of every option, and where it is set."),
    "recipes": ("recipes.command", "List the trainings that can be tuned without a script."),
}
# The commands that the help lists below the others.
_MORE = ("compare", "history", "report", "prove", "config", "recipes")
_HELP = {"--help", "-h", "--help-all"}
_LINUX_ALONE = ("tune", "run", "prove", "verify")
# Errors of a stream that cannot be written: full, lost, closed.
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

# The exit code that shells show for a program that SIGPIPE ended.
READER_GONE = 141


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _SUBCOMMANDS:
            return None
        module, name = _SUBCOMMANDS[cmd_name][0].split(".")
        command = getattr(import_module(f"cputune.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        elsewhere = sys.platform != "linux" and not ctx.resilient_parsing
        if elsewhere and args[0] in _LINUX_ALONE and not _HELP & set(args):
            raise CannotError(
                f"{args[0]} starts training processes, which needs Linux",
                hint="use WSL or a container; `doctor --root` and `emit --root` work here",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        usual, more = [], []
        for name, (_, line) in _SUBCOMMANDS.items():
            if name in _MORE:
                more.append((name, line))
            else:
                usual.append((name, line))
        with formatter.section("Commands"):
            formatter.write_dl(usual)
        with formatter.section("More commands"):
            formatter.write_dl(more)


def _print_version(ctx: click.Context, parameter: click.Parameter, requested: bool) -> None:
    if requested and not ctx.resilient_parsing:
        from cputune import __version__

        click.echo(f"cputune {__version__}")
        ctx.exit()


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "CPUTUNE"},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    allow_from_autoenv=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.option(
    "--config",
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=read_settings,
    help="Read defaults of options from FILE instead of your own; none: from no file.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Find what is wrong with a CPU training machine, tune training on it, write the launch.

    \b
    cputune doctor
    cputune tune --budget 20
    cputune emit --format mpirun
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


cli.params += common_options()
cli.commands = dict.fromkeys(_SUBCOMMANDS, cli)  # names only: click suggests the nearest one


def main(stopping: Collection[int] = ()) -> NoReturn:
    """The console script. Ends the process with its documented exit code.

    ``stopping`` are the signals that interrupt it (``cputune.cli.signals``).
    """
    with interrupted_by(stopping):
        try:
            code = _run()
        except KeyboardInterrupt:  # before the command, or while an error was printed
            code = report_error(Interrupted("interrupted"))
        finally:
            set_verbosity(0)  # code that calls main() may do its own logging
    sys.exit(code)


def _run() -> int:
    guard_streams()
    typed = sys.argv[1:]
    ours = list(itertools.takewhile(lambda word: word != "--", typed))  # the rest is the script's
    set_json("--json" in ours)
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except SystemExit as ended:  # by completion; by click and rich if the reader has gone
        lose(1)
        code = ended.code
        if code == 1:
            code = READER_GONE
    except (CputuneError, click.Abort, click.ClickException, KeyboardInterrupt, OSError) as error:
        if verbosity() >= 2:
            print_traceback(error)
        code = report_error(_of_ours(error))
    if isinstance(code, int):
        return code
    return 0


def _of_ours(error: BaseException) -> CputuneError:
    """Convert an error of click or of the system. Any other error is an interrupt."""
    if isinstance(error, CputuneError):
        return error
    if isinstance(error, OSError) and error.filename is None and error.errno in _NOT_WRITTEN:
        lose(1)
        problem = f"the output cannot be written: {error.strerror or error}"
        return CannotError(problem, hint="free disk space, or redirect the output")
    if isinstance(error, OSError):
        problem = f"{error.strerror or error}"
        if error.filename is not None:
            problem = f"{os.fsdecode(error.filename)}: {problem}"
        return CannotError(
            f"the system reports an error: {problem}",
            hint="run it again as `cputune -vv ...` to see the place",
        )
    if not isinstance(error, click.ClickException):
        return Interrupted("interrupted")
    hint, problem = None, " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"`{error.ctx.command_path} --help` lists the options"
    if isinstance(error, click.BadParameter) and error.ctx is not None:
        place = place_of(error.ctx, error.param)
        if place:
            problem = f"{place}: {problem}"
    if error.exit_code == UsageError.exit_code:
        return UsageError(problem, hint=hint)
    return CannotError(problem, hint=hint)
