"""``cputune config``: the default of every option, and who says so; ``cputune completion``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from cputune.cli.output import console, print_json
from cputune.cli.settings import (
    PROJECT_FILES,
    ConfiguredCommand,
    Setting,
    SettingsFiles,
    json_option,
    options_of,
    user_file,
    variable_behind,
    variable_of,
)
from cputune.errors import UsageError
from cputune.hidden import without_password
from cputune.text import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRow:
    """One option: its value where nothing is typed. ``place`` is a file or a variable."""

    command: str
    key: str
    value: Any
    source: str
    place: str | None
    variable: str

    def to_json(self) -> dict[str, Any]:
        """The row in the ``cputune.config/1`` document."""
        return {
            "command": self.command or None,
            "option": self.key,
            "value": list(self.value) if isinstance(self.value, tuple) else self.value,
            "from": self.source,
            "place": self.place,
            "variable": self.variable,
        }


@click.command(name="config", cls=ConfiguredCommand)
@click.argument("command_name", required=False, metavar="[COMMAND]")
@json_option
@click.pass_context
def command(ctx: click.Context, command_name: str | None, as_json: bool) -> None:
    """Show every option's default, and which file or variable says so.

    What is typed beats a variable (CPUTUNE_TUNE_BUDGET=40), which beats a file, in which a
    table bears the name of a command. Files are ~/.config/cputune/config.toml, and cputune.toml
    or [tool.cputune] in pyproject.toml in the working folder.

    \b
    cputune config
    cputune config tune
    """
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    known = root.command.list_commands(root)
    if command_name is not None and command_name not in known:
        raise UsageError(f"there is no command {command_name}", hint=f"one of {', '.join(known)}")
    names = ["", *known] if command_name is None else [command_name]
    rows = [row for name in names for row in _rows(root, name)]
    if as_json:
        print_json(_document(root.obj, rows))
    else:
        _print(root.obj, rows)


def _rows(root: click.Context, name: str) -> Iterator[OptionRow]:
    """The options of a command as click would fill them in."""
    assert isinstance(root.command, click.Group)
    command = root.command.get_command(root, name) if name else root.command
    assert command is not None
    defaults = root.obj.defaults(command, name)
    context = click.Context(command, info_name=name, default_map=defaults)
    for option in options_of(command):
        key = option.key
        value, source = _value(option, context)
        if key == "storage" and value is not None:
            value = without_password(value)
        variable = variable_of(name, key)
        place = {"file": root.obj.place_of(name, key), "variable": variable}.get(source)
        yield OptionRow(
            command=name, key=key, value=value, source=source, place=place, variable=variable
        )


def _value(option: Setting, context: click.Context) -> tuple[Any, str]:
    raw, source = option.consume_value(context, {})
    context.set_parameter_source(option.name or "", source)
    kinds = click.core.ParameterSource
    told = {kinds.ENVIRONMENT: "variable", kinds.DEFAULT_MAP: "file"}.get(source, "default")
    try:
        value = raw if told == "default" else option.type_cast_value(context, raw)
    except click.BadParameter as error:
        variable = variable_behind(error) or option.name
        raise UsageError(
            f"{variable}: {error.format_message()}", hint=f"unset {variable}"
        ) from error
    if isinstance(value, (Path, tuple, list)):
        value = str(value) if isinstance(value, Path) else tuple(map(str, value))
    # What click has in place of a default that is not there differs from version to version.
    nothing = () if option.multiple else None
    return value if isinstance(value, (str, int, float, tuple)) else nothing, told


def _document(settings: SettingsFiles, rows: list[OptionRow]) -> dict[str, Any]:
    return {
        "schema": "cputune.config/1",
        "files": [{"path": file.path, "trusted": file.trusted} for file in settings.files],
        "options": [row.to_json() for row in rows],
    }


def _print(settings: SettingsFiles, rows: list[OptionRow]) -> None:
    from rich.table import Table
    from rich.text import Text

    out = console()
    table = Table(box=None, pad_edge=False)
    for heading in ("command", "option", "value", "from"):
        table.add_column(heading)
    for row in rows:
        told = row.place or row.source
        style = "" if row.source == "default" else "bold"
        cells = (row.command or "cputune", row.key, _shown(row.value), visible(told))
        table.add_row(*(Text(cell, style) for cell in cells))
    out.print(table)
    out.print()
    own = user_file(os.environ)
    read = ", ".join(visible(file.path) for file in settings.files) or "none"
    places = [str(own) if own else None, " or ".join(PROJECT_FILES)]
    out.print(f"Files that were read: {read}. Looked for: {', '.join(filter(None, places))}.")


def _shown(value: Any) -> str:
    """A value as TOML writes it; – where there is none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(visible(str(item)) for item in value) or "–"
    return "–" if value is None else visible(str(value))


@click.command(name="completion", cls=ConfiguredCommand)
@click.argument("shell", required=False, type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str | None) -> None:
    """Print the completion script for a shell; without a name for the one that is used.

    \b
    eval "$(cputune completion bash)"
    """
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    found = get_completion_class(name)
    if found is None:
        raise UsageError("which shell is it?", hint="cputune completion bash, zsh or fish")
    root = ctx.find_root().command
    click.echo(found(root, {}, "cputune", "_CPUTUNE_COMPLETE").source())
