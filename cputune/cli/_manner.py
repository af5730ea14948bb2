"""How errors are to be told, mistakes in the command line, a file or a variable among them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import click

from cputune.cli._settings import read_settings
from cputune.errors import CputuneError


def manner(cli: click.Group, words: Sequence[str]) -> tuple[int, bool]:
    """How often ``-v`` is given, and whether JSON is asked for, as click reads these words.

    What click does not know is passed over. Words after ``--`` are the script's.
    """
    context = _context(cli)
    with contextlib.suppress(CputuneError):
        context.obj = read_settings(_config(cli, words), os.environ, cli.list_commands(context))
        context.default_map = context.obj.defaults(cli, "")
    options, rest = _parsed(cli, context, words)
    names = [number for number, word in enumerate(rest) if not word.startswith("-")]
    if not names:
        return options.get("verbose") or 0, False
    name = rest[names[0]]
    try:
        command = cli.get_command(context, name) or _UNKNOWN
    except CputuneError:  # its settings are what is wrong
        context.obj = None
        command = cli.get_command(context, name) or _UNKNOWN
    below = click.Context(
        command,
        parent=context,
        info_name=name,
        resilient_parsing=True,
        ignore_unknown_options=True,
    )
    told, _ = _parsed(command, below, rest[names[0] + 1 :])
    verbose = (options.get("verbose") or 0) + (told.get("verbose") or 0)
    return verbose, bool(told.get("as_json")) or told.get("format_") == "json"


_UNKNOWN = click.Command("unknown", params=[click.Option(["--json", "as_json"], is_flag=True)])
"""What a subcommand that does not exist is read as."""


def _parsed(
    command: click.Command, context: click.Context, words: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """The values of the options that are asked for here, and the words that are left."""
    given, rest, _ = command.make_parser(context).parse_args(list(words))
    values = {
        option.name: option.handle_parse_result(context, given, [])[0]
        for option in command.params
        if option.name in ("verbose", "as_json", "format_")
    }
    return {name: value for name, value in values.items() if name}, rest


def _context(cli: click.Group) -> click.Context:
    """With the program's own settings: a command keeps the first help option it is asked for."""
    return click.Context(
        cli, resilient_parsing=True, ignore_unknown_options=True, **cli.context_settings
    )


def _config(cli: click.Group, words: Sequence[str]) -> str | None:
    context = _context(cli)
    given, _, _ = cli.make_parser(context).parse_args(list(words))
    found = given.get("config")
    return found if isinstance(found, str) else os.environ.get("CPUTUNE_CONFIG") or None
