"""The folder of the user's state: small files that are kept there, the oldest of them dropped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from cputune.errors import CannotError


def state_folder() -> Path | None:
    """``~/.local/state/cputune`` (below ``$XDG_STATE_HOME``); None where there is no home.

    A relative path means nothing (XDG Base Directory Specification 0.8).
    """
    from platformdirs import user_state_path

    try:
        folder = user_state_path("cputune", appauthor=False)
    except (RuntimeError, OSError):
        return None
    return folder if folder.is_absolute() else None


def make_private(folder: Path) -> None:
    """Make a folder that the user alone can read. Raises CannotError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CannotError(
            f"cannot make {folder}: {error.strerror}", hint="XDG_STATE_HOME names another place"
        ) from error


def sizes(folder: Path, suffix: str) -> dict[str, int]:
    """The files of a folder that end so: name to bytes, sorted by name; none where it is not there.

    Links and whatever is no regular file are passed over.
    """
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.name.endswith(suffix) and not path.is_symlink() and path.is_file():
                found[path.name] = path.stat().st_size
    return found


def remove(folder: Path, names: Iterable[str]) -> None:
    """Remove files of a folder; what cannot be removed stays."""
    for name in names:
        with contextlib.suppress(OSError):
            (folder / name).unlink()
