"""Reads files whole, writes them whole or not at all, and finds the user's state folder."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from cputune.errors import CannotError, UsageError

READ_LIMIT_BYTES = 16 << 20
"""No file of /proc or /sys that we read is longer (4096 CPUs of cpuinfo are 6 MiB)."""

READ_AT_ONCE_BYTES = 1 << 16
"""The kernel answers ENOMEM to a read of 4 MiB or more below /proc/sys, however short the
file (``proc_sys_call_handler`` in fs/proc/proc_sysctl.c, since Linux 5.8)."""


LEFT_SECONDS = 600.0
"""No file takes so long to be written: what has not got its name by then, never will."""


FOR_NOW: set[Path] = set()
"""Files and folders that are gone when this process is. Whoever makes one removes it; where the
process ends at once, ``remove_for_now`` does."""


def remove_for_now() -> None:
    """Remove the temporary files of this process, which ends now."""
    for path in list(FOR_NOW):
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.unlink()


def read_file(path: str) -> str:
    """The text of a file of the kernel, undecodable bytes as U+FFFD. Raises OSError."""
    return _content(path, READ_LIMIT_BYTES).decode("utf-8", errors="replace")


def names(folder: str) -> tuple[str, ...]:
    """What lies in a folder, sorted; nothing where it cannot be listed."""
    try:
        return tuple(sorted(os.listdir(folder)))
    except (OSError, ValueError):
        return ()


def head(path: str, most_bytes: int) -> bytes:
    """The beginning of a file; nothing where it cannot be read."""
    try:
        return _content(path, most_bytes)
    except (OSError, ValueError):
        return b""


def read_document(path: str | os.PathLike[str], *, most_bytes: int = READ_LIMIT_BYTES) -> str:
    """The whole text of a file that a person or a program wrote; a BOM is left out.

    Raises OSError, its ``strerror`` in words, for what cannot be read, is no regular file,
    is larger than ``most_bytes``, or is no UTF-8.
    """
    try:
        text = _content(path, most_bytes + 1)
    except ValueError as error:  # the path contains a NUL
        raise FileNotFoundError(errno.ENOENT, "there is no such file", path) from error
    if len(text) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MiB", path)
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, "it is no UTF-8 text", path) from error


def _content(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The beginning of a regular file; anything else is not opened.

    A fifo would wait for a writer forever, and to open a device may have effects.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    content = bytearray()
    with open(path, "rb", buffering=0) as file:
        while len(content) < most_bytes and (piece := file.read(READ_AT_ONCE_BYTES)):
            content += piece
    return bytes(content[:most_bytes])


def write_atomically(path: Path, text: str, *, force: bool = False, mode: int = 0o644) -> None:
    """Write a file whole or not at all. Raises UsageError where it exists and not ``force``."""
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", hint="give --force to replace it")
    temporary = None
    try:
        _remove_left(path)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        FOR_NOW.add(Path(temporary))
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode & ~_umask())
        os.replace(temporary, path)
        from cputune.text.log import log  # logging takes a while to import

        log.getChild("host").info("wrote %s", path)
    except OSError as error:
        raise CannotError(
            f"cannot write {path}: {error.strerror or error}",
            hint="choose another place, or make it writable",
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):  # the file has its name already
                os.unlink(temporary)
            FOR_NOW.discard(Path(temporary))


ROOM_BYTES = 1 << 17
"""How much must find room where a result is to be written: more than results have."""


def require_writable(path: Path) -> None:
    """Raise CputuneError unless a file can be written there whole, which is tried.

    For what is written hours later: the folder, the room in it, and a file that would be replaced.
    """
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"there is no directory {folder}", hint="make it, or name another one")
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise UsageError(f"{path} is no regular file", hint="name a file")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}.") as probe:
            probe.write(bytes(ROOM_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
        if path.exists() and path.stat().st_uid == os.geteuid():
            status = path.stat()
            # What is immutable (chattr) cannot be replaced, and this cannot be done to it either.
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    except OSError as error:
        raise CannotError(
            f"nothing can be written to {path}: {(error.strerror or str(error)).lower()}",
            hint="make room or make it writable, or name another place with -o and --study",
        ) from error


def write_somewhere(name: str, text: str) -> Path | None:
    """Write a file for the user alone into the folder for temporary files; None where none can."""
    written = None
    try:
        descriptor, written = tempfile.mkstemp(prefix=f"{name}-", suffix=".json")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        if written is not None:
            with contextlib.suppress(OSError):
                os.unlink(written)
        return None
    return Path(written)


def _remove_left(path: Path) -> None:
    """Remove the unfinished files of writers that were killed before this file had its name."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.????????"):
        with contextlib.suppress(OSError):
            status = left.lstat()
            if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > LEFT_SECONDS:
                left.unlink()


def _umask() -> int:
    """The bits that the user takes away from the modes of new files; reading means setting them."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_tree(directory: Path, files: Mapping[str, str]) -> None:
    """Write a directory whole or not at all, of relative paths and their texts.

    Raises UsageError where it exists and holds anything, CannotError where it cannot
    be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(
            f"{directory} exists already", hint="name a directory that is new, or empty"
        )
    temporary = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
        for path, text in files.items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary / path).write_text(text, encoding="utf-8")
        temporary.chmod(0o755 & ~_umask())
        os.replace(temporary, directory)
    except OSError as error:
        raise CannotError(
            f"cannot write {directory}: {error.strerror or error}",
            hint="choose another place for the recording",
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def user_folder(kind: Literal["config", "state"]) -> Path | None:
    """``~/.config/cputune`` or ``~/.local/state/cputune``; None where there is no home.

    They lie below ``$XDG_CONFIG_HOME`` and ``$XDG_STATE_HOME`` where those are set. A relative path
    means nothing (XDG Base Directory Specification 0.8).
    """
    from platformdirs import user_config_path, user_state_path

    path = user_config_path if kind == "config" else user_state_path
    try:
        folder = path("cputune", appauthor=False)
    except (RuntimeError, OSError, ImportError):  # the last one on a system that is half there
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


def own_files(folder: Path, suffix: str) -> list[str]:
    """The names of the files of a folder with such an ending; none without a folder.

    Links and everything else that is no regular file are left out.
    """
    found = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name.endswith(suffix) and not path.is_symlink() and path.is_file():
                found.append(path.name)
    return found


def remove(folder: Path, names: Iterable[str]) -> None:
    """Remove files of a folder; what cannot be removed stays."""
    for name in names:
        with contextlib.suppress(OSError):
            (folder / name).unlink()
