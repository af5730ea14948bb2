"""Options, and their defaults from files and variables, by click's own means.

Command line > variable (``CPUTUNE_TUNE_BUDGET``, click's ``auto_envvar_prefix``) > file (click's
``default_map``) > default. The files, the nearest last:

- ``~/.config/cputune/config.toml`` (below ``$XDG_CONFIG_HOME``, where that is set)
- ``cputune.toml`` in the working folder, or where there is none ``[tool.cputune]`` in its
  ``pyproject.toml``; folders above it are not looked into
- ``--config FILE`` in place of both; ``--config none`` reads none

A working folder can be a clone, a download, /tmp. Its file is data like the rest of it: it sets
what is worth knowing about a project (a budget, a format, a namespace), and not where files go,
what is replaced, which program is started, on which machines, with which secrets. An option may
be set there where it says so (``folder=True``).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from cputune.cli.output import console, print_json, set_json, set_verbosity, tell, verbosity
from cputune.errors import CannotError, UsageError
from cputune.options import OWN_CHOICE, options_in

_TRUST = "set it in your own file (`cputune config` names it), or type it"
_SHOWN = "`cputune config` shows every option and its value"
_SCRIPT = "cputune.script"
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Record = TypeVar("Record")


class Setting(click.Option):
    """An option that files and a variable can set; a file of the working folder where it may."""

    def __init__(
        self, *words: Any, folder: bool = False, why_not: str = OWN_CHOICE, **said: Any
    ) -> None:
        super().__init__(*words, **said)
        self.folder, self.why_not = folder, why_not

    @property
    def key(self) -> str:
        """The option's name in a file: as it is typed, without the dashes."""
        return (self.name or "").replace("_", "-")


def option(*words: str, **said: Any) -> Callable[[Decorated], Decorated]:
    """An option of a command: click's, and ``folder``, ``why_not``."""
    return click.option(*words, cls=Setting, **said)


def wants_json(ctx: click.Context, parameter: click.Parameter, value: object) -> object:
    """Callback of --json: errors become documents, too. Eager, so it is known before any error."""
    if not ctx.resilient_parsing and value in (True, "json"):
        set_json(True)
    return value


json_option = option(
    "--json",
    is_flag=True,
    is_eager=True,
    callback=wants_json,
    help="One document on stdout, nothing else.",
)
force_option = option(
    "--force", is_flag=True, help="Replace FILE where it exists.", why_not="it replaces files"
)


def output_option(help: str, default: str | None = "-") -> Callable[[Decorated], Decorated]:
    """The option for where a product goes; ``-`` is stdout."""
    return option(
        "-o",
        "--output",
        metavar="FILE",
        default=default,
        show_default=default not in (None, "-"),
        help=help,
        why_not="it names a file that is written",
    )


fail_if_slower = option(
    "--fail-if-slower",
    metavar="5%",
    folder=True,
    help="End with 1 where speed is lost beyond doubt, by more than that.",
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
        said: dict[str, object] = {"help": text.help, "metavar": text.metavar}
        if hint is bool:
            said["is_flag"] = True
        elif text.repeated:
            said["multiple"] = True
        else:
            numbers = [kind for kind in (int, float) if kind.__name__ in str(hint)]
            said["type"] = str if text.reads or not numbers else numbers[0]
            said |= {"default": default, "show_default": default is not None}
        found.append(option(text.flag or "", folder=text.folder, why_not=text.why_not, **said))
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
        Setting(
            ["-v", "--verbose"], count=True, expose_value=False, callback=more, folder=True,
            help="Say more (doctor: why each finding matters); -vv: tracebacks of errors.",
        ),
        Setting(
            ["-q", "--quiet"], is_flag=True, expose_value=False, callback=less,
            help="Errors alone on stderr: no progress, no notes.",
            why_not="it would hide that the folder sets anything",
        ),
    ]  # fmt: skip


class ConfiguredCommand(click.Command):
    """A command with -v and -q; ``takes_script``: what stands after ``--`` is the user's script."""

    def __init__(self, *words: Any, takes_script: bool = False, **said: Any) -> None:
        super().__init__(*words, **said)
        self.takes_script = takes_script
        self.params += common_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Cut off the script, then read the options, then say what the folder sets."""
        if self.takes_script and "--" in args:
            cut = args.index("--")
            ctx.meta[_SCRIPT] = tuple(args[cut + 1 :])
            args = args[:cut]
        left = super().parse_args(ctx, args)
        for file in () if ctx.resilient_parsing else ctx.find_root().obj or ():
            for key, value in file.tables.get(ctx.info_name, {}).items():
                if not file.trusted:  # the folder may be somebody else's
                    tell(f"note: {file.path} sets {key} = {value!r}")
        return left

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line, with the script in it."""
        script = ["[-- SCRIPT ARGS...]"] if self.takes_script else []
        return [*super().collect_usage_pieces(ctx), *script]


def script_of(ctx: click.Context) -> tuple[str, ...] | None:
    """The words after ``--``; None where there was none."""
    words: tuple[str, ...] | None = ctx.meta.get(_SCRIPT)
    return words


def options_of(command: click.Command) -> tuple[Setting, ...]:
    """The options that a default can be given for: --help and --version only do something."""
    return tuple(one for one in command.params if isinstance(one, Setting))


def variable_of(command: str, key: str) -> str:
    """The variable of an option, as click makes it: ``CPUTUNE_TUNE_MAX_TIME``."""
    return "_".join(filter(None, ("CPUTUNE", command, key))).upper().replace("-", "_")


def refuse_unknown_variables(command: click.Command, name: str) -> None:
    """Raise UsageError for a variable that begins as this command's, and means nothing."""
    known = [variable_of(name, one.key) for one in options_of(command)]
    for variable in sorted(os.environ):
        if variable.startswith(variable_of(name, "") + "_") and variable not in known:
            hint = _meant(variable, known)
            raise UsageError(f"{variable} is the variable of no option", hint=hint)


def variable_behind(error: click.BadParameter) -> str | None:
    """The variable that gave the value which an option refuses; None where it was typed."""
    if error.ctx is None or not isinstance(error.param, Setting):
        return None
    source = error.ctx.get_parameter_source(error.param.name or "")
    command = "" if error.ctx.parent is None else error.ctx.info_name or ""
    return variable_of(command, error.param.key) if source is ParameterSource.ENVIRONMENT else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """One file as it was read: tables by command, the options of ``cputune`` itself under "".

    ``trusted``: the user wrote it, or named it; it is not what happens to lie in a folder.
    """

    path: str
    trusted: bool
    tables: Mapping[str, Mapping[str, object]]


Files = tuple[SettingsFile, ...]
"""The files that were read, the nearest last."""


def defaults(files: Files, command: click.Command, name: str) -> dict[str, object]:
    """Click's default map of a command; "" is ``cputune`` itself. Raises UsageError."""
    found: dict[str, object] = {}
    options = {one.key: one for one in options_of(command)}
    for file in files:
        for key, value in file.tables.get(name, {}).items():
            place = f"{file.path}: {f'{name}.{key}' if name else key}"
            if key not in options:
                raise UsageError(f"{place} is no option", hint=_meant(key, options))
            one = options[key]
            why = None if file.trusted else _why_not(one, value)
            if why is not None:
                raise UsageError(f"{place} may not be set by a working folder: {why}", hint=_TRUST)
            _require_type(one, value, place)
            found[one.name or ""] = value
    return found


def _why_not(option: Setting, value: object) -> str | None:
    """Why a file in the working folder may not set this; None where it may."""
    from cputune.workload import recipe_names

    if option.folder and option.key == "recipe" and value not in recipe_names():
        return "a recipe of the folder names weights that are loaded; a shipped one may be set"
    return None if option.folder else option.why_not


_KINDS = {
    "integer": (int, "a whole number"),
    "float": (float, "a number"),
    "boolean": (bool, "true or false"),
}


def _require_type(option: Setting, value: object, place: str) -> None:
    """Raise UsageError for a value that is not of the option's type; none is converted."""
    if option.multiple and not isinstance(value, list):
        raise UsageError(f"{place} is a list, not {value!r}", hint=f"{option.key} = [{value!r}]")
    name = option.type.name.removesuffix(" range")
    kind, wanted = _KINDS.get(name, (str, "text in quotes"))
    for member in value if isinstance(value, list) and option.multiple else [value]:
        if type(member) is not kind and (kind, type(member)) != (float, int):
            raise UsageError(f"{place} is {wanted}, not {member!r}", hint=_SHOWN)
        try:
            option.type.convert(member, option, None)
        except click.BadParameter as error:
            raise UsageError(f"{place}: {error.message}", hint=_SHOWN) from error


def _meant(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}?" if near else _SHOWN


MOST_BYTES = 1 << 20
"""The most bytes of a configuration file; the pyproject.toml of a large project has 50 KiB."""

NO_FILE = "none"
PROJECT_FILES = ("cputune.toml", "pyproject.toml")


def read_settings(config: str | None, commands: Iterable[str]) -> Files:
    """Read the files. ``config`` is what --config says, ``commands`` are the tables there are.

    Raises UsageError for what means nothing, CannotError for what cannot be read.
    """
    if config == NO_FILE:
        return ()
    if config is not None and not os.path.lexists(config):
        raise UsageError(f"there is no file {config}", hint=f"--config FILE, or --config {NO_FILE}")
    known = tuple(commands)
    if config is not None:
        return (_file(Path(config), True, _document(Path(config), named=True) or {}, known),)
    own = user_file()
    found = [] if own is None else [(own, True, _document(own))]
    project = ((Path(name), False, _document(Path(name))) for name in PROJECT_FILES)
    found += [next((one for one in project if one[2] is not None), (Path(), False, None))]
    return tuple(
        _file(path, trusted, document, known)
        for path, trusted, document in found
        if document is not None
    )


def _file(
    path: Path, trusted: bool, document: Mapping[str, object], commands: tuple[str, ...]
) -> SettingsFile:
    tables: dict[str, dict[str, object]] = {"": {}}
    for key, value in document.items():
        if isinstance(value, dict):
            if key not in commands:
                raise UsageError(f"{path}: [{key}] is no command", hint=_meant(key, commands))
            tables[key] = value
        elif key in commands:
            said = f"{path}: {key} is a command, and {value!r} no table"
            raise UsageError(said, hint=f"begin with [{key}]")
        else:
            tables[""][key] = value
    return SettingsFile(path=str(path), trusted=trusted, tables=tables)


def user_file() -> Path | None:
    """The user's own file, whether it is there or not; None where there is no home.

    A relative XDG_CONFIG_HOME means nothing (XDG Base Directory Specification 0.8).
    """
    named = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    home = named if named.is_absolute() else Path(os.path.expanduser("~")) / ".config"
    return home / "cputune" / "config.toml" if home.is_absolute() else None


def _document(path: Path, *, named: bool = False) -> dict[str, object] | None:
    """The values of a TOML file; of a pyproject.toml, those of ``[tool.cputune]``.

    None where there is none. Other faults of a pyproject.toml are ignored where nobody has named
    the file.
    """
    if not os.path.lexists(path):
        return None
    from cputune.documents import toml  # imported here: `cputune --help` needs neither
    from cputune.host import read_document

    hint = f"mend it; --config {NO_FILE} does without"
    shared = path.name == "pyproject.toml"
    try:
        text = read_document(path, most_bytes=MOST_BYTES)
        found = toml(text) if not shared or named or "tool.cputune" in text else {}
    except OSError as error:
        raise CannotError(f"cannot read {path}: {error.strerror or error}", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}", hint=hint) from error
    if not shared:
        return found
    ours: dict[str, object] | None = found.get("tool", {}).get("cputune")
    if ours is not None and not isinstance(ours, dict):
        raise UsageError(f"{path}: cputune is no table", hint="begin with [tool.cputune]")
    return ours


@click.command(name="config", cls=ConfiguredCommand)
@click.argument("command", required=False)
@json_option
@click.pass_context
def config(ctx: click.Context, command: str | None, json: bool) -> None:
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
    if command is not None and command not in known:
        raise UsageError(f"there is no command {command}", hint=f"one of {', '.join(known)}")
    rows = [row for name in ([command] if command else ["", *known]) for row in _rows(root, name)]
    if json:
        files = [{"path": file.path, "trusted": file.trusted} for file in root.obj]
        print_json({"schema": "cputune.config/1", "files": files, "options": rows})
        return
    from cputune.report.writing import Lines, Rows, print_blocks

    cells = ((r["command"] or "cputune", r["option"], _shown(r["value"]), r["place"] or r["from"])
             for r in rows)  # fmt: skip
    told = frozenset(number for number, row in enumerate(rows) if row["from"] != "default")
    headings = ("command", "option", "value", "from")
    read = ", ".join(file.path for file in root.obj) or "none"
    places = ", ".join(filter(None, (str(user_file() or ""), " or ".join(PROJECT_FILES))))
    where = f"files that were read: {read}; looked for: {places}"
    table = Rows(headings=headings, rows=tuple(cells), strong=told)
    print_blocks((table, Lines((("", where),))), console())


def _rows(root: click.Context, name: str) -> Iterator[dict[str, Any]]:
    """The options of a command as click would fill them in, for the ``cputune.config/1`` document.

    ``place`` is the file or the variable that says so.
    """
    assert isinstance(root.command, click.Group)
    command = root.command.get_command(root, name) if name else root.command
    assert command is not None
    context = root
    if name:
        context = click.Context(command, info_name=name, parent=root)
    for one in options_of(command):
        raw, source = one.consume_value(context, {})
        context.set_parameter_source(one.name or "", source)
        value: object = [] if one.multiple else None
        variable, place, told = variable_of(name, one.key), None, "default"
        if source is ParameterSource.ENVIRONMENT:
            told, place = "variable", variable
        elif source is ParameterSource.DEFAULT_MAP:
            told = "file"
            place = [file.path for file in root.obj if one.key in file.tables.get(name, {})][-1]
        raw = raw if told == "default" else one.type_cast_value(context, raw)
        if isinstance(raw, (str, int, float)):  # else click's mark: no default
            value = raw
        elif isinstance(raw, (Path, tuple)):
            value = str(raw) if isinstance(raw, Path) else list(map(str, raw))
        yield {
            "command": name or None,
            "option": one.key,
            "value": value,
            "from": told,
            "place": place,
            "variable": variable,
        }


def _shown(value: object) -> str:
    """A value as TOML writes it; – where there is none."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return "–" if value is None else str(value)


@click.command(name="completion", cls=ConfiguredCommand)
@click.argument("shell", required=False, type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str | None) -> None:
    """Print the completion script for a shell; without a name for the one that is used.

    \b
    eval "$(cputune completion bash)"
    """
    found = get_completion_class(shell or os.path.basename(os.environ.get("SHELL", "")))
    if found is None:
        raise UsageError("which shell is it?", hint="cputune completion bash, zsh or fish")
    root = ctx.find_root().command
    click.echo(found(root, {}, "cputune", "_CPUTUNE_COMPLETE").source())
