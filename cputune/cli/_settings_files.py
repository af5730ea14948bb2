"""The files that hold defaults of options, the nearest last.

- ``~/.config/cputune/config.toml`` (below ``$XDG_CONFIG_HOME``, where that is set)
- ``cputune.toml`` in the working folder, or where there is none ``[tool.cputune]`` in its
  ``pyproject.toml``; folders above it are not looked into
- ``--config FILE`` in place of both; ``--config none`` reads none
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cputune.errors import CannotError, UsageError

MOST_BYTES = 1 << 20
"""Of a configuration file; a pyproject.toml of a large project has 50 KiB."""

NO_FILE = "none"
PROJECT_FILES = ("cputune.toml", "pyproject.toml")


def documents(
    config: str | None, variables: Mapping[str, str]
) -> list[tuple[str, bool, dict[str, Any]]]:
    """(path, whether the user wrote or named it, values) of each file that is there.

    Raises UsageError for what is not TOML, CannotError for what cannot be read.
    """
    if config is not None:
        return [] if config == NO_FILE else [(config, True, _named(config))]
    found = []
    own = user_file(variables)
    if own is not None and (document := _document(own)) is not None:
        found.append((str(own), True, document))
    for name in PROJECT_FILES:
        document = _project_table() if name == "pyproject.toml" else _document(Path(name))
        if document is not None:
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


def _named(path: str) -> dict[str, Any]:
    document = _document(Path(path))
    if document is None:
        raise UsageError(f"there is no file {path}", hint=f"--config FILE, or --config {NO_FILE}")
    if Path(path).name == "pyproject.toml":
        return _table(document.get("tool", {}), "cputune", Path(path))
    return document


def _document(path: Path) -> dict[str, Any] | None:
    """The values of a TOML file; None where there is none."""
    try:
        return _values(_text(path), path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CannotError(
            f"cannot read {path}: {error.strerror or error}",
            hint=f"--config {NO_FILE} does without",
        ) from error


def _text(path: Path) -> str:
    if not os.path.lexists(path):  # so that `cputune --help` need not import what reads
        raise FileNotFoundError
    from cputune.host import read_document

    return read_document(path, most_bytes=MOST_BYTES)


def _project_table() -> dict[str, Any] | None:
    """``[tool.cputune]`` of pyproject.toml; None where there is none.

    What else is wrong with that file is not for us to complain of.
    """
    path = Path("pyproject.toml")
    try:
        text = _text(path)
        tool = _values(text, path).get("tool") if "cputune" in text else None
    except OSError:
        return None
    except UsageError:
        if "tool.cputune" in text:
            raise
        return None
    return _table(tool, "cputune", path) if isinstance(tool, dict) and "cputune" in tool else None


def _values(text: str, path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of 5,000 digits, 5,000 brackets
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UsageError(
            f"{path} is not TOML: {why}", hint=f"mend it; --config {NO_FILE} does without"
        ) from error
    return found


def _table(document: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    found = document.get(key, {})
    if not isinstance(found, dict):
        raise UsageError(f"{path}: {key} is no table", hint=f"begin with [tool.{key}]")
    return found
