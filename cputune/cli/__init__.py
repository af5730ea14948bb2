"""The command line: parsing and printing, nothing else.

Subcommands are imported when they are used, so that ``cputune --help`` stays quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from importlib import import_module
from typing import NoReturn

import click

from cputune.cli.output import (
    OutputError,
    guard_streams,
    print_traceback,
    report_error,
    set_color,
    set_json,
    set_verbosity,
    verbosity,
)
from cputune.cli.settings import (
    common_options,
    did_you_mean,
    place_of,
    read_settings,
)
from cputune.cli.signals import interrupted_by
from cputune.errors import CannotError, CputuneError, Interrupted, UsageError

_SUBCOMMANDS = {
    # name: (where it is, below cputune.cli; the line in `cputune --help`)
    "doctor": ("doctor.command", "Say what is wrong with this machine for training, and the cure."),
    "tune": ("tune.command", "Measure plans on this machine and find the fastest."),
    "show": ("results.show", "Show a result: the verdict, what to change, the launch, the plans."),
    "compare": (
        "results.compare",
        "Compare two results: same machine and work, how much faster?",
    ),
    "history": ("results.history", "List the results of earlier studies."),
    "emit": ("emit.command", "Write the launch files that reproduce the tuned plan."),
    "run": ("run.command", "Train with the tuned plan here, now, in the foreground."),
    "verify": ("verify.command", "Start launch files for a few steps and check what they do."),
    "report": ("results.report", "Write a result as one page for a browser."),
    "config": ("settings.config", "Show every option's default, and where it is set."),
    "recipes": ("recipes.command", "List the workloads that can be tuned on."),
}
_LINUX_ALONE = ("tune", "run", "verify")


class _LazyGroup(click.Group):
    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return ["-h", "--help"]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _SUBCOMMANDS:
            return None
        module, name = _SUBCOMMANDS[cmd_name][0].split(".")
        command = getattr(import_module(f"cputune.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``cputune help`` and ``cputune help tune`` beside click's own."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _SUBCOMMANDS and not ctx.resilient_parsing:
            hint = did_you_mean(
                args[0], _SUBCOMMANDS, "`cputune --help` lists the commands", "`cputune {}`"
            )
            if args[0].endswith(".py"):
                hint = f"cputune tune -- {args[0]}"
            raise UsageError(f"there is no command {args[0]!r}", hint=hint)
        elsewhere = sys.platform != "linux" and not ctx.resilient_parsing
        if elsewhere and args[0] in _LINUX_ALONE and not {"--help", "-h"} & set(args):
            raise CannotError(
                f"{args[0]} starts training processes, which cputune does on Linux alone",
                hint="use WSL or a container; `doctor --root` and `emit --root` work here",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _SUBCOMMANDS.items()])


def _print_version(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
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
    help="Defaults of options, in place of your usual file; none reads no file.",
)
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Beats NO_COLOR, which beats FORCE_COLOR, which beats the terminal.",
)
@click.pass_context
def cli(ctx: click.Context, color: str) -> None:
    """Find faults of a CPU training machine, tune training on it, emit the launch.

    \b
    cputune doctor
    cputune tune --budget 20
    cputune emit --format mpirun
    """
    set_color(color)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


cli.params += common_options()


def main(stopping: Collection[int] = ()) -> NoReturn:
    """The console script. Ends the process with the exit code of the contract.

    ``stopping`` are the signals that stop it (``cputune.cli.signals``).
    """
    with interrupted_by(stopping):
        try:
            code = _run()
        except KeyboardInterrupt:  # before a command, or while an error was printed
            code = report_error(Interrupted("interrupted"))
    sys.exit(code)


def _run() -> int:
    guard_streams()
    set_verbosity(0)
    set_json("--json" in _typed_words())
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except OutputError as error:
        # Where the reader went away (`cputune doctor | head`) there is nothing to say.
        code = error.exit_code if error.exit_code == 141 else report_error(error)
    except (CputuneError, click.Abort, click.ClickException, KeyboardInterrupt, OSError) as error:
        if verbosity() >= 2:
            print_traceback(error)
        code = report_error(_of_ours(error))
    return code if isinstance(code, int) else 0


def _typed_words() -> list[str]:
    """What was typed, without the script and its arguments: it says which command failed."""
    words = sys.argv[1:]
    return words[: words.index("--")] if "--" in words else words


def _of_ours(error: BaseException) -> CputuneError:
    """An error of click's or of the system as one of ours; anything else is an interrupt."""
    if isinstance(error, CputuneError):
        return error
    if isinstance(error, OSError):
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return CannotError(
            f"the system reports an error: {place}{error.strerror or error}",
            hint="`cputune -vv` and the same words show where",
        )
    if not isinstance(error, click.ClickException):
        return Interrupted("interrupted")
    hint, said = None, " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"`{error.ctx.command_path} --help` shows what can be given"
    if isinstance(error, click.BadParameter) and error.ctx is not None:
        told = place_of(error.ctx, error.param)
        said = f"{told}: {said}" if told else said
    kind = UsageError if error.exit_code == UsageError.exit_code else CannotError
    return kind(said, hint=hint)
