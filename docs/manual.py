"""``cputune.1``: the manual page, of the same words as ``--help``; ``make doc`` writes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from cputune.cli import cli

_END = r"""
.SH FILES
.TP
.I ~/.config/cputune/config.toml
Defaults of options; below $XDG_CONFIG_HOME where that is set.
.TP
.I cputune.json, cputune.db
What
.B cputune tune
writes: the result, and the study that can be gone on with.
.TP
.I ~/.local/state/cputune/history
The newest results, for
.BR "cputune history" ;
below $XDG_STATE_HOME where that is set.
.SH ENVIRONMENT
Every option has a variable: CPUTUNE_, the command and the option, as in CPUTUNE_TUNE_BUDGET.
.B cputune config
lists them. NO_COLOR and FORCE_COLOR are honoured.
.SH EXIT STATUS
.TP
.B 0
nothing is wrong
.TP
.B 1
findings as bad as
.BR \-\-fail\-on ,
or files that failed
.TP
.B 2
the call is wrong
.TP
.B 3
it could not be done
.TP
.B 4
tuning ended without one valid trial
.TP
.B 130
interrupted; the study is kept
"""


def man_page() -> str:
    """The page: what cputune is, its options, then each command with its own."""
    # click keeps a command's help option as it first made it: here with the names of the program.
    context = click.Context(cli, info_name="cputune", **cli.context_settings)
    lines = ['.TH CPUTUNE 1 "" "cputune" "User Commands"', ".SH NAME"]
    lines += [r"cputune \- tune Hugging Face training on CPUs", ".SH SYNOPSIS", ".B cputune"]
    lines += [r"[\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGS\fR]...", ".SH DESCRIPTION"]
    lines += [*_prose(cli), ".SH OPTIONS", *_options(cli, context), ".SH COMMANDS"]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        pieces = " ".join(command.collect_usage_pieces(below))
        lines += [f".SS {_text(f'cputune {name} {pieces}')}", *_prose(command)]
        lines += _options(command, below)
    return "\n".join(lines) + _END


def _prose(command: click.Command) -> Iterator[str]:
    r"""The help text; what stands behind click's \b is kept line by line."""
    for part in inspect.cleandoc(command.help or "").split("\n\n"):
        verbatim = part.startswith("\b\n")
        yield ".PP"
        yield from (".nf", ".RS") if verbatim else ()
        yield from (_text(line) for line in part.removeprefix("\b\n").splitlines())
        yield from (".RE", ".fi") if verbatim else ()


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record is not None:
            yield from (".TP", rf"\fB{_text(record[0])}\fR", *map(_text, record[1].splitlines()))


def _text(line: str) -> str:
    """A line that roff prints as it stands: no escape, no request, dashes that can be pasted."""
    shown = line.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    return rf"\&{shown}" if shown.startswith((".", "'")) else shown
