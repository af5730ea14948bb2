"""Options, and their defaults from a file and from variables.

The order is: command line, variable (``CPUTUNE_TUNE_BUDGET``, click's ``auto_envvar_prefix``), file
(click's ``default_map``), default. The file is ``~/.config/cputune/config.toml`` (below
``$XDG_CONFIG_HOME`` if that is set), or that of ``--config FILE``. Files in the working folder are
never read, because it may be a download or /tmp.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
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
MOST_BYTES = 1 << 20  # of a configuration file

# Options of ``cputune`` that act at once, and so have no default.
_ACT_AT_ONCE = ("version", "config", "help_all")

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Record = TypeVar("Record")

json_option = click.option("--json", is_flag=True, help="Print one JSON document, nothing else.")
fail_if_slower = click.option(
    "--fail-if-slower",
    metavar="5%",
    help="Exit with 1 if the whole interval is slower by more than this.",
)


def output_option(help: str, default: str | None = None) -> Callable[[Decorated], Decorated]:
    """The option for the file of a product. ``-`` is stdout."""
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
    """Combine several options into one decorator, in their order."""

    def decorate(command: Decorated) -> Decorated:
        for add in reversed(options):
            command = add(command)
        return command

    return decorate


def options_from(record: type) -> Callable[[Decorated], Decorated]:
    """Make an option of a command for each option of a record."""
    options = []
    for name, hint, default, text in options_in(record):
        kinds = []
        for kind in (int, float):
            if kind in (hint, *get_args(hint)):
                kinds.append(kind)
        number = None
        if kinds and not text.reads:
            number = kinds[0]
        value = default
        if text.repeated:
            value = None
        made = click.option(
            text.flag or "",
            help=text.help,
            metavar=text.metavar,
            type=number,
            is_flag=hint is bool,
            multiple=text.repeated,
            default=value,
            show_default=number is not None and default is not None,
            shell_complete=OF_OPTIONS.get(name),
        )
        options.append(made)
    return all_of(*options)


def record_from_options(record: Callable[..., Record], options: Mapping[str, object]) -> Record:
    """Build the record from the typed options. Raises UsageError."""
    values = {}
    for name, _, _, text in options_in(record):  # type: ignore[arg-type]
        value = options[(text.flag or "").lstrip("-").replace("-", "_")]
        if value not in (None, ()):
            if text.reads is not None:
                value = text.reads(value)
            values[name] = value
    return record(**values)


# What -v does by default.
MORE = "Print more"


_HELP_ALL = "cputune.help_all"


def show_every_option(ctx: click.Context) -> click.Context:
    """Let the help of this context list every option. Returns the context."""
    ctx.meta[_HELP_ALL] = True
    return ctx


def _help_all_option() -> click.Option:
    def act(ctx: click.Context, parameter: click.Parameter, requested: bool) -> None:
        if requested and not ctx.resilient_parsing:
            click.echo(show_every_option(ctx).get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=act,
        help="Show every option.",
    )


def common_options(more: str = MORE) -> list[click.Parameter]:
    """-v and -q, which act when they are parsed, and are not passed to the command."""

    def act(ctx: click.Context, parameter: click.Parameter, value: int) -> None:
        if value and not ctx.resilient_parsing:
            if parameter.name == "quiet":
                set_verbosity(-1)
            else:
                set_verbosity(verbosity() + value)

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

    ``takes_script``: the words after ``--`` are the user's script. ``groups``: headings of the help
    with the names of their options. ``usual``: the options that the short help shows; --help-all
    shows the others, too. ``more``: what -v does.
    """

    def __init__(
        self,
        *args: Any,
        takes_script: bool = False,
        groups: Groups | None = None,
        usual: Sequence[str] = (),
        more: str = MORE,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.takes_script = takes_script
        self.groups: Groups = groups or {}
        self.usual = usual
        self.params += common_options(more)
        if usual:
            self.params.append(_help_all_option())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in their groups, those without a group last."""
        records, helps = {}, []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                records[parameter.name or ""] = record
                if parameter.is_eager:  # --help-all and --help
                    helps.append(record)
        if self.usual and not ctx.meta.get(_HELP_ALL):
            with formatter.section("Options"):
                formatter.write_dl([records[name] for name in self.usual] + helps)
            return
        for heading, names in self.groups.items():
            with formatter.section(heading):
                formatter.write_dl([records.pop(name) for name in names])
        heading = "Options"
        if self.groups:
            heading = OTHERS
        with formatter.section(heading):
            formatter.write_dl(list(records.values()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Apply the defaults and cut off the script, then parse the options."""
        take_defaults(ctx)
        if self.takes_script and "--" in args:
            cut = args.index("--")
            ctx.meta[_SCRIPT] = tuple(args[cut + 1 :])
            args = args[:cut]
        return super().parse_args(ctx, args)


def script_of(ctx: click.Context) -> tuple[str, ...] | None:
    """The words after ``--``. None if there was no ``--``."""
    script: tuple[str, ...] | None = ctx.meta.get(_SCRIPT)
    return script


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options that can have a configured default, by their name without dashes."""
    return {
        (parameter.name or "").replace("_", "-"): parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name not in _ACT_AT_ONCE
    }


def place_of(ctx: click.Context, parameter: click.Parameter | None) -> str | None:
    """The variable, or the file and its key, that set a value. None if it was typed."""
    name = None
    if isinstance(parameter, click.Option):
        name = parameter.name
    source = ctx.get_parameter_source(name or "")
    if source is ParameterSource.ENVIRONMENT:
        return f"{ctx.auto_envvar_prefix}_{name}".upper()
    if source is ParameterSource.DEFAULT_MAP:
        return _key_in_file(ctx, (name or "").replace("_", "-"))
    return None


def _key_in_file(ctx: click.Context, key: str) -> str:
    table = ""
    if ctx.parent is not None:
        table = f"{ctx.info_name}."
    return f"{ctx.find_root().obj}: {table}{key}"


def take_defaults(ctx: click.Context) -> None:
    """Turn a table of the file into click's default map, with each value as it would be typed.

    Raises UsageError for unknown keys and for values of the wrong type.
    """
    hint = "run `cputune config` to see all options and their values"
    options = options_of(ctx.command)
    commands = []
    if isinstance(ctx.command, click.Group):
        commands = ctx.command.list_commands(ctx)
    typed: dict[str, Any] = {}
    for key, value in (ctx.default_map or {}).items():
        place, option = _key_in_file(ctx, key), options.get(key)
        if key in commands and isinstance(value, dict):
            typed[key] = value  # a table, for the context of that command
        elif option is None:
            raise UsageError(f"{place} is not an option", hint=hint)
        elif isinstance(value, dict) or isinstance(value, list) is not option.multiple:
            wanted = "a text or a number"
            if option.multiple:
                wanted = "a list of texts"
            raise UsageError(f"{place} must be {wanted}, not {value!r}", hint=hint)
        elif option.multiple:
            typed[option.name or ""] = list(map(str, value))
        else:
            typed[option.name or ""] = str(value)
    ctx.default_map = typed


def user_file() -> Path | None:
    """The path of the user's configuration file, which may not exist. None without a home
    folder.
    """
    from cputune.host.files import user_folder  # slow to import, and --help does not need it

    folder = user_folder("config")
    if folder is None:
        return None
    return folder / "config.toml"


def read_settings(ctx: click.Context, parameter: click.Parameter, config: str | None) -> None:
    """Read the file before any other option: the callback of ``--config``.

    Raises UsageError for content that is not valid, CannotError if it cannot be read.
    """
    path: Path | None
    if config is None:
        path = user_file()
    else:
        path = Path(config)
    absent = path is None or config == NO_FILE or not (config or os.path.lexists(path))
    if path is None or absent or ctx.resilient_parsing:  # completion
        return
    from cputune.host import read_document
    from cputune.text.documents import toml  # slow to import, and --help does not need it

    hint = f"fix the file, or ignore it with --config {NO_FILE}"
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
        command = root.command.get_command(root, name)
        assert command is not None
        rows += _rows(click.Context(command, info_name=name, parent=root))
    changed = frozenset(number for number, row in enumerate(rows) if row[-1] != "default")
    table = Rows(headings=("command", "option", "value", "from"), rows=tuple(rows), strong=changed)
    source = f"none; it would be {user_file()}"
    if root.obj:
        source = root.obj
    print_blocks((table, Lines((("", f"the file that was read: {source}"),))), console())


def _rows(ctx: click.Context) -> Iterator[tuple[str, str, str, str]]:
    """The options of a command with their values and sources. Raises as click does."""
    from cputune.text.hidden import without_secrets  # the address of --study may have a password

    take_defaults(ctx)
    for key, option in options_of(ctx.command).items():
        value, source = option.consume_value(ctx, {})
        ctx.set_parameter_source(option.name or "", source)
        place = place_of(ctx, option)
        if place:
            value = option.type_cast_value(ctx, value)
        else:
            value = option.to_info_dict()["default"]
        if option.multiple:
            value = ", ".join(map(str, value or ()))
        shown = "–"
        if value not in (None, ""):
            shown = without_secrets(str(value), {})
        yield ctx.info_name or "", key, shown, place or "default"
