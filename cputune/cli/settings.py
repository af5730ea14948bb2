"""Options, and their defaults from a file and variables, by click's own means.

Command line > variable (``CPUTUNE_TUNE_BUDGET``, click's ``auto_envvar_prefix``) > file (click's
``default_map``) > default. The file is the user's own, ``~/.config/cputune/config.toml`` (below
``$XDG_CONFIG_HOME``, where that is set), or what ``--config FILE`` names; ``--config none`` reads
none. What lies in a working folder, which can be a clone, a download or /tmp, sets nothing.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from cputune.cli.output import console, print_json, set_json, set_verbosity, verbosity
from cputune.errors import CannotError, UsageError
from cputune.options import options_in

_SHOWN = "`cputune config` shows every option and its value"
_SCRIPT = "cputune.script"
_ACT_AT_ONCE = ("version", "config")
"""Options of ``cputune`` itself that only do something: there is no default to give them."""

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Record = TypeVar("Record")


def wants_json(ctx: click.Context, parameter: click.Parameter, value: object) -> object:
    """Callback of --json: errors become documents, too. Eager, so it is known before any error."""
    if not ctx.resilient_parsing and value in (True, "json"):
        set_json(True)
    return value


json_option = click.option(
    "--json",
    is_flag=True,
    is_eager=True,
    callback=wants_json,
    help="One document on stdout, nothing else.",
)
force_option = click.option("--force", is_flag=True, help="Replace FILE where it exists.")
fail_if_slower = click.option(
    "--fail-if-slower",
    metavar="5%",
    help="End with 1 where speed is lost beyond doubt, by more than that.",
)


def output_option(help: str, default: str | None = "-") -> Callable[[Decorated], Decorated]:
    """The option for where a product goes; ``-`` is stdout."""
    shown = default not in (None, "-")
    return click.option(
        "-o", "--output", metavar="FILE", default=default, show_default=shown, help=help
    )


def all_of(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    """Several options as one decorator, in their order."""

    def decorate(command: Decorated) -> Decorated:
        for add in reversed(options):
            command = add(command)
        return command

    return decorate


def options_from(record: type) -> Callable[[Decorated], Decorated]:
    """Every option of a record as one of a command."""
    found = []
    for _, hint, default, text in options_in(record):
        said: dict[str, Any] = {"help": text.help, "metavar": text.metavar}
        if hint is bool:
            said["is_flag"] = True
        elif text.repeated:
            said["multiple"] = True
        else:
            numbers = [kind for kind in (int, float) if kind.__name__ in str(hint)]
            said["type"] = str if text.reads or not numbers else numbers[0]
            said |= {"default": default, "show_default": default is not None}
        found.append(click.option(text.flag or "", **said))
    return all_of(*found)


def given(record: Callable[..., Record], options: Mapping[str, object]) -> Record:
    """The record of what was typed. Raises UsageError."""
    values = {}
    for name, hint, _, text in options_in(record):  # type: ignore[arg-type]
        flag = text.flag or ""
        value = options[flag.lstrip("-").replace("-", "_")]
        if value is None or value == ():
            continue
        if hint is bool:
            value = value != flag.startswith("--no-")
        values[name] = value if text.reads is None else text.reads(value)
    return record(**values)


def common_options() -> list[click.Parameter]:
    """The options -v and -q; they act by themselves, and are not passed to the command."""

    def more(ctx: click.Context, parameter: click.Parameter, count: int) -> None:
        if count and not ctx.resilient_parsing:
            set_verbosity(verbosity() + count)

    def less(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
        if asked and not ctx.resilient_parsing:
            set_verbosity(-1)

    return [
        click.Option(
            ["-v", "--verbose"], count=True, expose_value=False, callback=more,
            help="Say more (doctor: why each finding matters); -vv: tracebacks of errors.",
        ),
        click.Option(
            ["-q", "--quiet"], is_flag=True, expose_value=False, callback=less,
            help="Errors alone on stderr: no progress, no notes.",
        ),
    ]  # fmt: skip


class ConfiguredCommand(click.Command):
    """A command with -v and -q; ``takes_script``: what stands after ``--`` is the user's script."""

    def __init__(self, *words: Any, takes_script: bool = False, **said: Any) -> None:
        super().__init__(*words, **said)
        self.takes_script = takes_script
        self.params += common_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Cut off the script, then read the options."""
        if self.takes_script and "--" in args:
            cut = args.index("--")
            ctx.meta[_SCRIPT] = tuple(args[cut + 1 :])
            args = args[:cut]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line, with the script in it."""
        script = ["[-- SCRIPT ARGS...]"] if self.takes_script else []
        return [*super().collect_usage_pieces(ctx), *script]


def script_of(ctx: click.Context) -> tuple[str, ...] | None:
    """The words after ``--``; None where there was none."""
    words: tuple[str, ...] | None = ctx.meta.get(_SCRIPT)
    return words


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options that a default can be given for, by their keys: as typed, without the dashes."""
    return {
        (one.name or "").replace("_", "-"): one
        for one in command.params
        if isinstance(one, click.Option) and one.name not in _ACT_AT_ONCE
    }


def variable_of(command: str, key: str) -> str:
    """The variable of an option, as click makes it: ``CPUTUNE_TUNE_MAX_TIME``."""
    return "_".join(filter(None, ("CPUTUNE", command, key))).upper().replace("-", "_")


def refuse_unknown_variables(command: click.Command, name: str) -> None:
    """Raise UsageError for a variable that begins as this command's, and means nothing."""
    known = [variable_of(name, key) for key in options_of(command)]
    for variable in sorted(os.environ):
        if variable.startswith(variable_of(name, "") + "_") and variable not in known:
            hint = did_you_mean(variable, known, _SHOWN)
            raise UsageError(f"{variable} is the variable of no option", hint=hint)


def did_you_mean(word: str, known: Iterable[str], otherwise: str, how: str = "{}") -> str:
    """A hint: the words that are near to one that means nothing, else another hint."""
    near = difflib.get_close_matches(word, list(known), n=2)
    return f"did you mean {' or '.join(map(how.format, near))}?" if near else otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """A file as it was read: tables by command, the options of ``cputune`` itself under ""."""

    path: str | None = None
    tables: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def defaults(self, command: click.Command, name: str) -> dict[str, object]:
        """Click's default map of a command: each value as it would be typed. Raises UsageError."""
        found: dict[str, object] = {}
        options = options_of(command)
        for key, value in self.tables.get(name, {}).items():
            place = f"{self.path}: {f'{name}.{key}' if name else key}"
            if key not in options:
                hint = did_you_mean(key, options, _SHOWN)
                raise UsageError(f"{place} is no option", hint=hint)
            one, members = options[key], value if isinstance(value, list) else [value]
            if not all(isinstance(member, (str, int, float)) for member in members):
                raise UsageError(f"{place} is text or a number, not {value!r}", hint=_SHOWN)
            if isinstance(value, list) is not one.multiple:
                wanted = "a list" if one.multiple else "no list"
                hint = f"{key} = [{value!r}]" if one.multiple else _SHOWN
                raise UsageError(f"{place} is {wanted}, not {value!r}", hint=hint)
            typed = [str(member) for member in members]
            found[one.name or ""] = typed if one.multiple else typed[0]
        return found

    def place_of(self, parameter: click.Parameter | None, context: click.Context) -> str | None:
        """The variable, or the file and its key, that a value is of; None where it was typed."""
        if not isinstance(parameter, click.Option):
            return None
        key = (parameter.name or "").replace("_", "-")
        name = "" if context.parent is None else context.info_name or ""
        source = context.get_parameter_source(parameter.name or "")
        if source is ParameterSource.ENVIRONMENT:
            return variable_of(name, key)
        if source is ParameterSource.DEFAULT_MAP:
            return f"{self.path}: {f'{name}.{key}' if name else key}"
        return None


MOST_BYTES = 1 << 20
"""The most bytes of a configuration file."""

NO_FILE = "none"


def user_file() -> Path | None:
    """The user's own file, whether it is there or not; None where there is no home.

    A relative XDG_CONFIG_HOME means nothing (XDG Base Directory Specification 0.8).
    """
    named = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    home = named if named.is_absolute() else Path(os.path.expanduser("~")) / ".config"
    return home / "cputune" / "config.toml" if home.is_absolute() else None


def read_settings(config: str | None, commands: Iterable[str]) -> Defaults:
    """Read the file. ``config`` is what --config says, ``commands`` are the tables there are.

    Raises UsageError for what means nothing, CannotError for what cannot be read.
    """
    path = user_file() if config is None else Path(config)
    if path is None or config == NO_FILE or not (config or os.path.lexists(path)):
        return Defaults()
    from cputune.documents import toml  # imported here: `cputune --help` needs neither
    from cputune.host import read_document

    hint = f"mend it; --config {NO_FILE} does without"
    try:
        document = toml(read_document(path, most_bytes=MOST_BYTES))
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}", hint=f"--config {NO_FILE}") from error
    except OSError as error:
        raise CannotError(f"cannot read {path}: {error.strerror or error}", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}", hint=hint) from error
    known = tuple(commands)
    tables: dict[str, Any] = {"": {}}
    for key, value in document.items():
        if isinstance(value, dict) is not (key in known):
            said = "is no command" if isinstance(value, dict) else "is a command: begin with [tune]"
            raise UsageError(f"{path}: {key} {said}", hint=did_you_mean(key, known, _SHOWN))
        (tables if key in known else tables[""])[key] = value
    return Defaults(path=str(path), tables=tables)


@click.command(name="config", cls=ConfiguredCommand)
@click.argument("command", required=False)
@json_option
@click.pass_context
def config(ctx: click.Context, command: str | None, json: bool) -> None:
    """Show every option's default, and whether a file or a variable says so.

    What is typed beats a variable (CPUTUNE_TUNE_BUDGET=40), which beats the file
    ~/.config/cputune/config.toml, in which a table bears the name of a command.

    \b
    cputune config
    cputune config tune
    """
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    known = root.command.list_commands(root)
    if command is not None and command not in known:
        hint = did_you_mean(command, known, f"one of {', '.join(known)}")
        raise UsageError(f"there is no command {command}", hint=hint)
    rows = [row for name in ([command] if command else ["", *known]) for row in _rows(root, name)]
    settings: Defaults = root.obj
    if json:
        print_json({"schema": "cputune.config/1", "file": settings.path, "options": rows})
        return
    from cputune.report.writing import Lines, Rows, print_blocks

    cells = tuple((r["command"] or "cputune", r["option"], _shown(r["value"]), r["from"])
                  for r in rows)  # fmt: skip
    told = frozenset(number for number, row in enumerate(rows) if row["from"] != "default")
    headings = ("command", "option", "value", "from")
    where = f"the file that was read: {settings.path or f'none; it would be {user_file()}'}"
    print_blocks(
        (Rows(headings=headings, rows=cells, strong=told), Lines((("", where),))), console()
    )


def _rows(root: click.Context, name: str) -> Iterator[dict[str, Any]]:
    """The options of a command as click would fill them in, for the ``cputune.config/1`` document.

    ``from`` is the variable, the file and its key, or ``default``.
    """
    assert isinstance(root.command, click.Group)
    command = root.command.get_command(root, name) if name else root.command
    assert command is not None
    context = click.Context(command, info_name=name, parent=root) if name else root
    for key, one in options_of(command).items():
        value, source = one.consume_value(context, {})
        context.set_parameter_source(one.name or "", source)
        place = root.obj.place_of(one, context)
        value = value if place is None else one.type_cast_value(context, value)
        if isinstance(value, (Path, tuple)):
            value = str(value) if isinstance(value, Path) else list(map(str, value))
        elif not isinstance(value, (str, int, float)):  # click's mark: no default
            value = [] if one.multiple else None
        variable = variable_of(name, key)
        row = {"command": name or None, "option": key, "value": value, "from": place or "default"}
        yield {**row, "variable": variable}


def _shown(value: object) -> str:
    """A value as TOML writes it; – where there is none."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(value) or "–"
    return "–" if value is None else str(value)
