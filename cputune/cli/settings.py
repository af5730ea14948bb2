"""Options, and their defaults from a file and variables, by click's own means.

Command line > variable (``CPUTUNE_TUNE_BUDGET``, click's ``auto_envvar_prefix``) > file (click's
``default_map``) > default. The file is the user's own, ``~/.config/cputune/config.toml`` (below
``$XDG_CONFIG_HOME``, where that is set), or what ``--config FILE`` names; ``--config none`` reads
none. What lies in a working folder, which can be a clone, a download or /tmp, sets nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from cputune.cli.completing import OF_OPTIONS, files
from cputune.cli.help_groups import OTHERS, Groups
from cputune.cli.output import console, set_verbosity, verbosity
from cputune.errors import CannotError, UsageError
from cputune.records.options import options_in

_SCRIPT = "cputune.script"
NO_FILE = "none"
MOST_BYTES = 1 << 20
"""The most bytes of a configuration file."""

_ACT_AT_ONCE = ("version", "config")
"""Options of ``cputune`` itself that only do something: there is no default to give them."""

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Record = TypeVar("Record")

json_option = click.option("--json", is_flag=True, help="Print one JSON document, nothing else.")
fail_if_slower = click.option(
    "--fail-if-slower",
    metavar="5%",
    help="Exit with 1 if the whole interval is slower by more than this.",
)


def output_option(help: str, default: str | None = None) -> Callable[[Decorated], Decorated]:
    """The option for where a product goes; ``-`` is stdout."""
    names = ("-o", "--output")
    return click.option(
        *names,
        metavar="FILE",
        default=default,
        show_default=True,
        help=help,
        shell_complete=files,
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
    for name, hint, default, text in options_in(record):
        kinds = [kind for kind in (int, float) if kind in (hint, *get_args(hint))]
        number = kinds[0] if kinds and not text.reads else None
        made = click.option(
            text.flag or "",
            help=text.help,
            metavar=text.metavar,
            type=number,
            is_flag=hint is bool,
            multiple=text.repeated,
            default=None if text.repeated else default,
            show_default=number is not None and default is not None,
            shell_complete=OF_OPTIONS.get(name),
        )
        found.append(made)
    return all_of(*found)


def given(record: Callable[..., Record], options: Mapping[str, object]) -> Record:
    """The record of what was typed. Raises UsageError."""
    values = {}
    for name, _, _, text in options_in(record):  # type: ignore[arg-type]
        value = options[(text.flag or "").lstrip("-").replace("-", "_")]
        if value not in (None, ()):
            values[name] = value if text.reads is None else text.reads(value)
    return record(**values)


MORE = "Print more"
"""What -v does, unless a command says more of it."""


def common_options(more: str = MORE) -> list[click.Parameter]:
    """The options -v and -q; they act by themselves, and are not passed to the command."""

    def act(ctx: click.Context, parameter: click.Parameter, value: int) -> None:
        if value and not ctx.resilient_parsing:
            set_verbosity(-1 if parameter.name == "quiet" else verbosity() + value)

    return [
        click.Option(
            ["-v", "--verbose"],
            count=True,
            expose_value=False,
            callback=act,
            help=f"{more}; -vv: tracebacks of errors.",
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            expose_value=False,
            callback=act,
            help="Print only errors on stderr: no progress, no notes.",
        ),
    ]


class ConfiguredCommand(click.Command):
    """A command with -v and -q.

    ``takes_script``: what stands after ``--`` is the user's script. ``groups``: headings of its
    help, each with the names of its options. ``more``: what -v does.
    """

    def __init__(
        self,
        *words: Any,
        takes_script: bool = False,
        groups: Groups | None = None,
        more: str = MORE,
        **said: Any,
    ) -> None:
        super().__init__(*words, **said)
        self.takes_script = takes_script
        self.groups: Groups = groups or {}
        self.params += common_options(more)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in their groups; those of no group come last."""
        records = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                records[parameter.name or ""] = record
        for heading, names in self.groups.items():
            with formatter.section(heading):
                formatter.write_dl([records.pop(name) for name in names])
        with formatter.section(OTHERS if self.groups else "Options"):
            formatter.write_dl(list(records.values()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Look at the defaults and cut off the script, then read the options."""
        take_defaults(ctx)
        if self.takes_script and "--" in args:
            cut = args.index("--")
            ctx.meta[_SCRIPT] = tuple(args[cut + 1 :])
            args = args[:cut]
        return super().parse_args(ctx, args)


def script_of(ctx: click.Context) -> tuple[str, ...] | None:
    """The words after ``--``; None where there was none."""
    words: tuple[str, ...] | None = ctx.meta.get(_SCRIPT)
    return words


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options that a default can be given for, by their keys: as typed, without the dashes."""
    return {
        (parameter.name or "").replace("_", "-"): parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name not in _ACT_AT_ONCE
    }


def place_of(ctx: click.Context, parameter: click.Parameter | None) -> str | None:
    """The variable, or the file and its key, that a value is of; None where it was typed."""
    name = parameter.name if isinstance(parameter, click.Option) else None
    source = ctx.get_parameter_source(name or "")
    if source is ParameterSource.ENVIRONMENT:
        return f"{ctx.auto_envvar_prefix}_{name}".upper()
    if source is ParameterSource.DEFAULT_MAP:
        return _key_in_file(ctx, (name or "").replace("_", "-"))
    return None


def _key_in_file(ctx: click.Context, key: str) -> str:
    table = "" if ctx.parent is None else f"{ctx.info_name}."
    return f"{ctx.find_root().obj}: {table}{key}"


def take_defaults(ctx: click.Context) -> None:
    """Make of a table of the file click's default map: each value as it would be typed.

    Raises UsageError for what means nothing there.
    """
    hint = "`cputune config` shows every option and its value"
    options = options_of(ctx.command)
    commands = ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []
    typed: dict[str, Any] = {}
    for key, value in (ctx.default_map or {}).items():
        place, option = _key_in_file(ctx, key), options.get(key)
        if key in commands and isinstance(value, dict):
            typed[key] = value  # a table, for the context of that command
        elif option is None:
            raise UsageError(f"{place} means nothing", hint=hint)
        elif isinstance(value, dict) or isinstance(value, list) is not option.multiple:
            wanted = "a list of texts" if option.multiple else "a text or a number"
            raise UsageError(f"{place} is {wanted}, not {value!r}", hint=hint)
        else:
            typed[option.name or ""] = list(map(str, value)) if option.multiple else str(value)
    ctx.default_map = typed


def user_file() -> Path | None:
    """The user's own file, whether it is there or not; None where there is no home."""
    from cputune.host.files import user_folder  # not for --help: it brings msgspec

    folder = user_folder("config")
    return folder / "config.toml" if folder else None


def read_settings(ctx: click.Context, parameter: click.Parameter, config: str | None) -> None:
    """Read the file before any other option: the callback of ``--config``.

    The context then has the file's name, and its tables as click's default map. Raises UsageError
    for what means nothing, CannotError for what cannot be read.
    """
    path = user_file() if config is None else Path(config)
    absent = path is None or config == NO_FILE or not (config or os.path.lexists(path))
    if path is None or absent or ctx.resilient_parsing:  # completion
        return
    from cputune.host import read_document
    from cputune.text.documents import toml  # imported here: `cputune --help` needs neither

    hint = f"mend it; --config {NO_FILE} does without"
    try:
        ctx.obj, ctx.default_map = str(path), toml(read_document(path, most_bytes=MOST_BYTES))
    except OSError as error:
        raise CannotError(f"cannot read {path}: {error.strerror or error}", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}", hint=hint) from error
    take_defaults(ctx)


@click.command(name="config", cls=ConfiguredCommand)
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show the default of every option, and whether a file or a variable sets it.

    The command line overrides variables (CPUTUNE_TUNE_BUDGET=40), and variables override the
    file ~/.config/cputune/config.toml, in which a table has the name of a command.

    \b
    cputune config
    cputune config | grep tune
    """
    from cputune.report.writing import Lines, Rows, print_blocks

    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    rows = [("cputune", *row[1:]) for row in _rows(root)]
    for name in root.command.list_commands(root):
        found = root.command.get_command(root, name)
        assert found is not None
        rows += _rows(click.Context(found, info_name=name, parent=root))
    changed = frozenset(number for number, row in enumerate(rows) if row[-1] != "default")
    table = Rows(headings=("command", "option", "value", "from"), rows=tuple(rows), strong=changed)
    where = f"the file that was read: {root.obj or f'none; it would be {user_file()}'}"
    print_blocks((table, Lines((("", where),))), console())


def _rows(ctx: click.Context) -> Iterator[tuple[str, str, str, str]]:
    """The options of a command as click would fill them in, and who says so. Raises as click."""
    from cputune.text.hidden import without_secrets  # an address of --study may hold a password

    take_defaults(ctx)
    for key, option in options_of(ctx.command).items():
        value, source = option.consume_value(ctx, {})
        ctx.set_parameter_source(option.name or "", source)
        place = place_of(ctx, option)
        value = option.type_cast_value(ctx, value) if place else option.to_info_dict()["default"]
        if option.multiple:
            value = ", ".join(map(str, value or ()))
        shown = "–" if value in (None, "") else without_secrets(str(value), {})
        yield ctx.info_name or "", key, shown, place or "default"
