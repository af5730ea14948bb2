"""Options, and their defaults from files and variables: what may be said there, and by whom.

Command line > variable (``CPUTUNE_TUNE_BUDGET``) > file > default. The files, the nearest last:

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
from typing import Any, TypeVar, get_args, get_type_hints

import click
from click.shell_completion import CompletionItem, get_completion_class

from cputune.cli.output import console, print_json, set_json, set_verbosity, tell, verbosity
from cputune.errors import CannotError, UsageError
from cputune.options import OWN_CHOICE, options_in
from cputune.text import visible

_TRUST = "set it in your own file (`cputune config` names it), or type it"
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
        """Its name in a file: as it is typed, without the dashes."""
        return next((word for word in self.opts if word.startswith("--")), self.opts[0]).lstrip("-")

    def why_not_from_a_folder(self, value: object) -> str | None:
        """Why a file in the working folder may not set this; None where it may."""
        if self.folder and self.key == "recipe":
            from cputune.workload import recipe_names

            if value not in recipe_names():
                return (
                    "a recipe of the folder names weights that are loaded; a shipped one may be set"
                )
        return None if self.folder else self.why_not

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Values that begin so, where they are known."""
        known = completions(self.name or "", incomplete)
        return super().shell_complete(ctx, incomplete) if known is None else known


def completions(name: str, typed: str) -> list[CompletionItem] | None:
    """The values of an option that begin as typed, behind its last comma; None: not known."""
    before, comma, last = typed.rpartition(",")
    known = _known_values(name, last)
    if known is None:
        return None
    return [CompletionItem(before + comma + word) for word in known if word.startswith(last)]


def _known_values(name: str, typed: str) -> Iterable[str] | None:
    if name == "recipe":
        from cputune.workload import recipe_names

        return recipe_names()
    if name == "format_":
        from cputune.emitters import FORMATS, PRINTED_FORMATS

        return (*FORMATS, *PRINTED_FORMATS, "all")
    if name == "mpi":
        from cputune.emitters import MPI_DIALECTS

        return MPI_DIALECTS
    if name in ("explain", "only", "ignore"):
        from cputune.doctor import Severity
        from cputune.doctor.registry import all_checks

        severities = [one.value for one in Severity] if name == "only" else []
        return (*severities, *(check.code for check in all_checks()))
    if name in ("knobs", "fix"):
        from cputune.knobs import KNOBS

        if name == "fix":
            from cputune.plan import Plan

            knob, equals, _ = typed.partition("=")
            held = get_args(get_type_hints(Plan).get(knob)) if equals else ()
            return [f"{knob}={value}" for value in held] or (f"{one.name}=" for one in KNOBS)
        return (f"+{knob.name}" if typed.startswith("+") else knob.name for knob in KNOBS)
    return None


def option(*words: str, **said: Any) -> Callable[[Decorated], Decorated]:
    """An option of a command: click's, and ``folder``, ``why_not``."""
    return click.option(*words, cls=Setting, **said)


json_option = option(
    "--json", "as_json", is_flag=True, help="One document on stdout, nothing else."
)
force_option = option(
    "--force", is_flag=True, help="Replace FILE where it exists.", why_not="it replaces files"
)


fail_if_slower = option(
    "--fail-if-slower",
    metavar="5%",
    folder=True,
    help="End with 1 where speed is lost beyond doubt, by more than that.",
)


def options_from(record: type) -> Callable[[Decorated], Decorated]:
    """Every option of a record as one of a command."""

    def decorate(command: Decorated) -> Decorated:
        for name, hint, default, text in reversed(options_in(record)):
            switch = hint is bool
            words = [*(word.strip() for word in (text.flag or "").split(",")), name]
            said: dict[str, object] = {"help": text.help, "metavar": text.metavar}
            if switch:
                said["is_flag"] = True
            elif text.repeated:
                said["multiple"] = True
            else:
                number = text.reads is None and "int" in str(hint)
                said["type"] = int if number else str
                said |= {"default": default, "show_default": default is not None}
            command = option(*words, folder=text.folder, why_not=text.why_not, **said)(command)
        return command

    return decorate


def given(record: Callable[..., Record], options: dict[str, object]) -> Record:
    """The record of what was typed; what it takes leaves ``options``. Raises UsageError."""
    values = {}
    for name, hint, _, text in options_in(record):  # type: ignore[arg-type]
        value = options.pop(name)
        if value is None or value == ():
            continue
        if hint is bool:
            value = value != (text.flag or "").startswith("--no-")
        values[name] = value if text.reads is None else text.reads(value)
    return record(**values)


class ConfiguredCommand(click.Command):
    """A command with -v and -q; ``takes_script``: what stands after ``--`` is the user's script."""

    def __init__(self, *words: Any, takes_script: bool = False, **said: Any) -> None:
        super().__init__(*words, **said)
        self.takes_script = takes_script
        add_common_options(self, self.name or "")

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """``-h`` too, in every context: click keeps the option of the first one (8.1.8)."""
        return ["-h", "--help"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Cut off the script, then read the options, then say what the folder sets."""
        if self.takes_script and "--" in args:
            cut = args.index("--")
            ctx.meta[_SCRIPT] = tuple(args[cut + 1 :])
            args = args[:cut]
        if not ctx.resilient_parsing:
            set_json(self._wants_json(ctx, args))
        left = super().parse_args(ctx, args)
        take_verbosity(ctx)
        settings = ctx.find_root().obj
        if isinstance(settings, SettingsFiles) and not ctx.resilient_parsing:
            for note in settings.notes(ctx.info_name or ""):
                tell(f"note: {note}")
        return left

    def _wants_json(self, ctx: click.Context, args: list[str]) -> bool:
        """Whether a document is asked for: known before the first error, unknown words passed."""
        lenient = click.Context(
            self, parent=ctx.parent, info_name=ctx.info_name, resilient_parsing=True,
            ignore_unknown_options=True, default_map=ctx.default_map,
        )  # fmt: skip
        typed, _, _ = self.make_parser(lenient).parse_args(list(args))
        told = {
            one.name: one.handle_parse_result(lenient, typed, [])[0]
            for one in options_of(self)
            if one.name in ("as_json", "format_")
        }
        return bool(told.get("as_json")) or told.get("format_") == "json"

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line, with the script in it."""
        script = ["[-- SCRIPT ARGS...]"] if self.takes_script else []
        return [*super().collect_usage_pieces(ctx), *script]


def script_of(ctx: click.Context) -> tuple[str, ...] | None:
    """The words after ``--``; None where there was none."""
    words: tuple[str, ...] | None = ctx.meta.get(_SCRIPT)
    return words


def add_common_options(command: click.Command, name: str) -> None:
    """-v and -q, and the variable of each option: what it says is converted as if typed."""
    more = "Say more (doctor: why each finding matters); -vv: tracebacks of errors."
    less = "Errors alone on stderr: no progress, no notes."
    hides = "it would hide that the folder sets anything"
    command.params += [
        Setting(["-v", "--verbose"], count=True, help=more, folder=True),
        Setting(["-q", "--quiet"], count=True, help=less, why_not=hides),
    ]
    for one in options_of(command):
        one.envvar = variable_of(name, one.key)


def take_verbosity(ctx: click.Context) -> None:
    """Let -v and -q act; they are no arguments of a command's function."""
    more, less = ctx.params.pop("verbose", None) or 0, ctx.params.pop("quiet", None) or 0
    if not ctx.resilient_parsing:
        set_verbosity(-1 if less else verbosity() + more)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """One file as it was read: tables by command, the options of ``cputune`` itself under "".

    ``trusted``: the user wrote it, or named it; it is not what happens to lie in a folder.
    """

    path: str
    trusted: bool
    tables: Mapping[str, Mapping[str, object]]

    def values(self, command: click.Command, name: str) -> dict[str, object]:
        """What it sets for a command, by the option's key. Raises UsageError."""
        options = {option.key: option for option in options_of(command)}
        values = dict(self.tables.get(name, {}))
        for key, value in values.items():
            place = f"{self.path}: {f'{name}.{key}' if name else key}"
            if key not in options:
                raise UsageError(f"{place} is no option", hint=_meant(key, options))
            if not self.trusted and (why := options[key].why_not_from_a_folder(value)):
                raise UsageError(f"{place} may not be set by a working folder: {why}", hint=_TRUST)
            _require_type(options[key], value, place)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFiles:
    """The files that were read, the nearest last."""

    files: tuple[SettingsFile, ...] = ()

    def defaults(self, command: click.Command, name: str) -> dict[str, object]:
        """Click's default map of a command; "" is ``cputune`` itself. Raises UsageError."""
        found: dict[str, object] = {}
        names = {option.key: option.name or "" for option in options_of(command)}
        for file in self.files:
            for key, value in file.values(command, name).items():
                found[names[key]] = value
        return found

    def notes(self, name: str) -> tuple[str, ...]:
        """What a working folder sets for a command: said, because it may be somebody else's."""
        return tuple(
            f"{file.path} sets {key} = {value!r}"
            for file in self.files
            if not file.trusted
            for key, value in file.tables.get(name, {}).items()
        )

    def place_of(self, name: str, key: str) -> str | None:
        """The file that decides an option of a command."""
        return next((f.path for f in reversed(self.files) if key in f.tables.get(name, {})), None)


def options_of(command: click.Command) -> tuple[Setting, ...]:
    """The options that a default can be given for: --help and --version only do something."""
    return tuple(one for one in command.params if isinstance(one, Setting))


def variable_of(name: str, key: str) -> str:
    """The variable of an option: ``CPUTUNE_TUNE_MAX_TIME``, ``CPUTUNE_COLOR``."""
    return "_".join(filter(None, ("CPUTUNE", name, key))).upper().replace("-", "_")


def refuse_unknown_variables(
    command: click.Command, name: str, variables: Mapping[str, str]
) -> None:
    """Raise UsageError for a variable that begins as this command's, and means nothing."""
    known = [variable_of(name, option.key) for option in options_of(command)]
    prefix = variable_of(name, "")
    for variable in sorted(variables):
        if variable.startswith(f"{prefix}_") and variable not in known:
            raise UsageError(
                f"{variable} is the variable of no option", hint=_meant(variable, known)
            )


def variable_behind(error: click.BadParameter) -> str | None:
    """The variable whose value an option refuses; None where the value was typed."""
    if error.ctx is None or not isinstance(error.param, click.Option):
        return None
    source = error.ctx.get_parameter_source(error.param.name or "")
    from_variable = source is click.core.ParameterSource.ENVIRONMENT
    return str(error.param.envvar) if from_variable else None


def read_settings(
    config: str | None, variables: Mapping[str, str], commands: Iterable[str]
) -> SettingsFiles:
    """Read the files. ``config`` is what --config says, ``commands`` are the tables there are.

    Raises UsageError for what means nothing, CannotError for what cannot be read.
    """
    tables = tuple(commands)
    found = documents(config, variables)
    return SettingsFiles(files=tuple(_file(*one, tables) for one in found))


def _file(
    path: str, trusted: bool, document: Mapping[str, object], commands: tuple[str, ...]
) -> SettingsFile:
    tables: dict[str, dict[str, object]] = {"": {}}
    for key, value in document.items():
        if isinstance(value, dict):
            if key not in commands:
                raise UsageError(f"{path}: [{key}] is no command", hint=_meant(key, commands))
            tables[key] = value
        elif key in commands:
            raise UsageError(
                f"{path}: {key} is a command, and {value!r} no table", hint=f"begin with [{key}]"
            )
        else:
            tables[""][key] = value
    return SettingsFile(path=path, trusted=trusted, tables=tables)


def _require_type(option: Setting, value: object, place: str) -> None:
    """Raise UsageError for a value that is not of the option's type: none is guessed."""
    wanted, fits = _kind(option)
    members = value if option.multiple and isinstance(value, list) else [value]
    if option.multiple and not isinstance(value, list):
        raise UsageError(f"{place} is a list, not {value!r}", hint=f"{option.key} = [{value!r}]")
    for member in members:
        if not fits(member):
            raise UsageError(f"{place} is {wanted}, not {member!r}", hint=_AS_TYPED)
        try:
            option.type.convert(member, option, None)
        except click.BadParameter as error:
            raise UsageError(f"{place}: {error.message}", hint=_AS_TYPED) from error


_AS_TYPED = "`cputune config` shows every option and its value"


def _kind(option: click.Option) -> tuple[str, Callable[[object], bool]]:
    if option.count or isinstance(option.type, click.types.IntParamType):
        return "a whole number", lambda value: type(value) is int
    if option.is_flag and option.is_bool_flag:
        return "true or false", lambda value: isinstance(value, bool)
    if isinstance(option.type, click.types.FloatParamType):
        return "a number", lambda value: type(value) in (int, float)
    return "text in quotes", lambda value: isinstance(value, str)


def _meant(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}?" if near else "`cputune config` shows all there are"


MOST_BYTES = 1 << 20
"""Of a configuration file; a pyproject.toml of a large project has 50 KiB."""

NO_FILE = "none"
PROJECT_FILES = ("cputune.toml", "pyproject.toml")


def documents(
    config: str | None, variables: Mapping[str, str]
) -> list[tuple[str, bool, dict[str, object]]]:
    """(path, whether the user wrote or named it, values) of each file that is there.

    Raises UsageError for what is not TOML, CannotError for what cannot be read.
    """
    if config == NO_FILE:
        return []
    if config is not None:
        if not os.path.lexists(config):
            raise UsageError(
                f"there is no file {config}", hint=f"--config FILE, or --config {NO_FILE}"
            )
        return [(config, True, _document(Path(config), named=True) or {})]
    found = []
    own = user_file(variables)
    if own is not None and (document := _document(own)) is not None:
        found.append((str(own), True, document))
    for name in PROJECT_FILES:
        if (document := _document(Path(name))) is not None:
            found.append((name, False, document))
            break
    return found


def user_file(variables: Mapping[str, str]) -> Path | None:
    """The user's own file, whether it is there or not; None where there is no home.

    A relative XDG_CONFIG_HOME means nothing (XDG Base Directory Specification 0.8).
    """
    named = Path(variables.get("XDG_CONFIG_HOME", ""))
    home = named if named.is_absolute() else Path(os.path.expanduser("~")) / ".config"
    return home / "cputune" / "config.toml" if home.is_absolute() else None


def _document(path: Path, *, named: bool = False) -> dict[str, object] | None:
    """The values of a TOML file, of a pyproject.toml those of ``[tool.cputune]``.

    None where there is none. What else is wrong with a pyproject.toml that nobody has named is not
    for us to complain of.
    """
    if not os.path.lexists(path):
        return None
    from cputune.documents import toml  # `cputune --help` does without both
    from cputune.host import read_document

    shared = path.name == "pyproject.toml"
    try:
        text = read_document(path, most_bytes=MOST_BYTES)
    except OSError as error:
        if shared and not named:
            return None
        raise CannotError(
            f"cannot read {path}: {error.strerror or error}",
            hint=f"--config {NO_FILE} does without",
        ) from error
    if shared and "cputune" not in text:
        return None
    try:
        found = toml(text)
    except ValueError as error:
        if shared and not named and "tool.cputune" not in text:
            return None
        raise UsageError(
            f"{path} is not TOML: {error}", hint=f"mend it; --config {NO_FILE} does without"
        ) from error
    if not shared:
        return found
    tool = found.get("tool")
    ours = tool.get("cputune") if isinstance(tool, dict) else None
    if ours is not None and not isinstance(ours, dict):
        raise UsageError(f"{path}: cputune is no table", hint="begin with [tool.cputune]")
    return ours


@click.command(name="config", cls=ConfiguredCommand)
@click.argument("command_name", required=False, metavar="[COMMAND]")
@json_option
@click.pass_context
def config(ctx: click.Context, command_name: str | None, as_json: bool) -> None:
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
        print_json(
            {
                "schema": "cputune.config/1",
                "files": [{"path": file.path, "trusted": file.trusted} for file in root.obj.files],
                "options": rows,
            }
        )
    else:
        _print(root.obj, rows)


def _rows(root: click.Context, name: str) -> Iterator[dict[str, Any]]:
    """The options of a command as click would fill them in, for the ``cputune.config/1`` document.

    ``place`` is the file or the variable that says so.
    """
    assert isinstance(root.command, click.Group)
    command = root.command.get_command(root, name) if name else root.command
    assert command is not None
    defaults = root.obj.defaults(command, name)
    context = click.Context(command, info_name=name, default_map=defaults)
    for option in options_of(command):
        key = option.key
        value, source = _value(option, context)
        variable = variable_of(name, key)
        place = {"file": root.obj.place_of(name, key), "variable": variable}.get(source)
        yield {
            "command": name or None,
            "option": key,
            "value": value,
            "from": source,
            "place": place,
            "variable": variable,
        }


def _value(option: Setting, context: click.Context) -> tuple[object, str]:
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
        value = str(value) if isinstance(value, Path) else list(map(str, value))
    # click's stand-in for a missing default differs between its versions.
    nothing: list[str] | None = [] if option.multiple else None
    return value if isinstance(value, (str, int, float, list)) else nothing, told


def _print(settings: SettingsFiles, rows: list[dict[str, Any]]) -> None:
    from cputune.report.writing import Rows, rich_table

    out = console()
    cells = (
        (
            row["command"] or "cputune",
            row["option"],
            _shown(row["value"]),
            row["place"] or row["from"],
        )
        for row in rows
    )
    told = frozenset(number for number, row in enumerate(rows) if row["from"] != "default")
    headings = ("command", "option", "value", "from")
    out.print(rich_table(Rows(headings=headings, rows=tuple(cells), strong=told)))
    out.print()
    own = user_file(os.environ)
    read = ", ".join(visible(file.path) for file in settings.files) or "none"
    places = [str(own) if own else None, " or ".join(PROJECT_FILES)]
    out.print(f"Files that were read: {read}. Looked for: {', '.join(filter(None, places))}.")


def _shown(value: object) -> str:
    """A value as TOML writes it; – where there is none."""
    if isinstance(value, bool):
        return "true" if value else "false"
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
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    found = get_completion_class(name)
    if found is None:
        raise UsageError("which shell is it?", hint="cputune completion bash, zsh or fish")
    root = ctx.find_root().command
    click.echo(found(root, {}, "cputune", "_CPUTUNE_COMPLETE").source())
