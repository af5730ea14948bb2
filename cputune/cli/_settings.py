"""Defaults of options from files and variables: what may be said there, and by whom.

Command line > variable (``CPUTUNE_TUNE_BUDGET``) > file > default; ``_settings_files`` names the
files. A working folder may be somebody else's, so its file sets only what stands in ``_folder``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from cputune.cli._folder import why_not_from_a_folder
from cputune.cli._settings_files import documents
from cputune.errors import UsageError

_TRUST = "set it in your own file (`cputune config` names it), or type it"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """One file as it was read: tables by command, the options of ``cputune`` itself under "".

    ``trusted``: the user wrote it, or named it; it is not what happens to lie in a folder.
    """

    path: str
    trusted: bool
    tables: Mapping[str, Mapping[str, Any]]

    def values(self, command: click.Command, name: str) -> dict[str, Any]:
        """What it sets for a command, by the option's key. Raises UsageError."""
        options = {key_of(option): option for option in options_of(command)}
        values = dict(self.tables.get(name, {}))
        for key, value in values.items():
            place = f"{self.path}: {f'{name}.{key}' if name else key}"
            if key not in options:
                raise UsageError(f"{place} is no option", hint=_meant(key, options))
            if not self.trusted and (why := why_not_from_a_folder(name, key, value)):
                raise UsageError(f"{place} may not be set by a working folder: {why}", hint=_TRUST)
            _require_type(options[key], value, place)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The files that were read, the nearest last."""

    files: tuple[SettingsFile, ...] = ()

    def defaults(self, command: click.Command, name: str) -> dict[str, Any]:
        """Click's default map of a command; "" is ``cputune`` itself. Raises UsageError."""
        found: dict[str, Any] = {}
        names = {key_of(option): option.name or "" for option in options_of(command)}
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


def options_of(command: click.Command) -> tuple[click.Option, ...]:
    """The options that a default can be given for: --help and --version only do something."""
    doing = ("help", "version", "config")
    found = (one for one in command.params if isinstance(one, click.Option))
    return tuple(option for option in found if option.name not in doing)


def key_of(option: click.Option) -> str:
    """The name of an option in a file: as it is typed, without the dashes."""
    return max(option.opts, key=len).lstrip("-")


def variable_of(name: str, key: str) -> str:
    """The variable of an option: ``CPUTUNE_TUNE_MAX_TIME``, ``CPUTUNE_COLOR``."""
    return "_".join(filter(None, ("CPUTUNE", name, key))).upper().replace("-", "_")


def name_variables(command: click.Command, name: str) -> None:
    """Let click read the variable of each option. What a variable says is converted as typed."""
    for option in options_of(command):
        option.envvar = variable_of(name, key_of(option))


def refuse_unknown_variables(
    command: click.Command, name: str, variables: Mapping[str, str]
) -> None:
    """Raise UsageError for a variable that begins as this command's, and means nothing."""
    known = [variable_of(name, key_of(option)) for option in options_of(command)]
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
) -> Settings:
    """Read the files. ``config`` is what --config says, ``commands`` are the tables there are.

    Raises UsageError for what means nothing, CannotError for what cannot be read.
    """
    tables = tuple(commands)
    found = documents(config, variables)
    return Settings(files=tuple(_file(*one, tables) for one in found))


def _file(
    path: str, trusted: bool, document: Mapping[str, Any], commands: tuple[str, ...]
) -> SettingsFile:
    tables: dict[str, dict[str, Any]] = {"": {}}
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


def _require_type(option: click.Option, value: Any, place: str) -> None:
    """Raise UsageError for a value that is not of the option's type: none is guessed."""
    wanted, fits = _kind(option)
    members = value if option.multiple and isinstance(value, list) else [value]
    if option.multiple and not isinstance(value, list):
        raise UsageError(
            f"{place} is a list, not {value!r}", hint=f"{key_of(option)} = [{value!r}]"
        )
    for member in members:
        if not fits(member):
            raise UsageError(f"{place} is {wanted}, not {member!r}", hint=_AS_TYPED)
        try:
            option.type.convert(member, option, None)
        except click.BadParameter as error:
            raise UsageError(f"{place}: {error.message}", hint=_AS_TYPED) from error


_AS_TYPED = "`cputune config` shows every option and its value"


def _kind(option: click.Option) -> tuple[str, Any]:
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
