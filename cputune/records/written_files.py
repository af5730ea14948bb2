"""Remembers which files cputune has written, so that it may replace them if they are unchanged.

The list, each path with the digest of its text, is in the user's state folder.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from cputune.errors import CputuneError, UsageError
from cputune.host import read_document, write_atomically
from cputune.host.files import exists, make_private, user_folder
from cputune.text.documents import parse
from cputune.text.log import log

# The oldest are forgotten first.
MOST_REMEMBERED = 2000

_SCHEMA = "cputune.written/1"


def write_own(path: Path, text: str, *, force: bool = False, mode: int = 0o644) -> None:
    """Write a file atomically and remember it. Raises CputuneError, as ``require_own`` does."""
    require_own(path, text, force=force)
    write_atomically(path, text, force=True, mode=mode)
    remember({path: text})


def require_own(path: Path, text: str, *, force: bool = False) -> None:
    """Raise UsageError if a file exists that cputune did not write, or that was changed since."""
    if force or not exists(path):
        return
    try:
        present = read_document(path)
    except OSError as error:
        raise _in_the_way(path) from error
    if present != text and _remembered().get(_key(path)) != _digest(present):
        raise _in_the_way(path)


def _in_the_way(path: Path) -> UsageError:
    return UsageError(
        f"{path} exists, and cputune did not write it as it is now",
        hint="--force replaces it, -o FILE writes to another file",
    )


def remember(files: dict[Path, str]) -> None:
    """Remember files that were just written; if that fails, --force is needed the next time."""
    state = user_folder("state")
    if state is None:
        return
    digests = _remembered()
    for path, text in files.items():
        digests.pop(_key(path), None)
        digests[_key(path)] = _digest(text)
    newest = dict(list(digests.items())[-MOST_REMEMBERED:])
    try:
        make_private(state)
        document = json.dumps({"schema": _SCHEMA, "files": newest}, indent=1)
        write_atomically(state / "written.json", document + "\n", force=True, mode=0o600)
    except (CputuneError, OSError) as error:
        log.getChild("history").info("the list of written files was not saved: %s", error)


def _remembered() -> dict[str, str]:
    """The digest of each file by its absolute path, in the order of writing."""
    state = user_folder("state")
    if state is None:
        return {}
    try:
        document = parse(read_document(state / "written.json"))
    except (OSError, ValueError):
        return {}
    files = None
    if isinstance(document, dict):
        files = document.get("files")
    if not isinstance(files, dict):
        return {}
    return {str(path): str(digest) for path, digest in files.items()}


def _key(path: Path) -> str:
    return str(path.absolute())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()
