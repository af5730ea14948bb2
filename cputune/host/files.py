"""Reads and writes whole files, and finds the user's folders."""

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

# Larger than every file of /proc and /sys that is read (cpuinfo of 4096 CPUs has 6 MiB).
READ_LIMIT_BYTES = 16 << 20

# The kernel returns ENOMEM for a read of 4 MiB or more below /proc/sys, even if the file is short
# (``proc_sys_call_handler`` in fs/proc/proc_sysctl.c, since Linux 5.8).
READ_AT_ONCE_BYTES = 1 << 16


# A temporary file that is older than this was left by a writer that was killed.
LEFT_SECONDS = 600.0


# Temporary files and folders of this process, which ``remove_temporary_files`` removes if it
# ends at once.
TEMPORARY_FILES: set[Path] = set()


def remove_temporary_files() -> None:
    """Remove the temporary files of this process, which ends now."""
    for path in list(TEMPORARY_FILES):
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.unlink()


def read_file(path: str) -> str:
    """Read a file of the kernel. Bytes that cannot be decoded become U+FFFD. Raises OSError."""
    return _content(path, READ_LIMIT_BYTES).decode("utf-8", errors="replace")


def names(folder: str) -> tuple[str, ...]:
    """Sorted names in a folder, empty if it cannot be listed."""
    try:
        return tuple(sorted(os.listdir(folder)))
    except (OSError, ValueError):
        return ()


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is something at a path."""
    return os.path.exists(path)


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a regular file at a path."""
    return os.path.isfile(path)


def is_folder(path: str | os.PathLike[str]) -> bool:
    return os.path.isdir(path)


def entries(folder: Path) -> list[Path]:
    """What is in a folder, sorted."""
    return sorted(folder.iterdir())


def real_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path without links."""
    return Path(path).resolve()


def size(path: Path) -> int:
    """The bytes of a file."""
    return path.stat().st_size


def changed_at(path: Path) -> float:
    """When a file was last changed, in seconds since 1970."""
    return path.stat().st_mtime


def rename(path: Path, to: Path) -> None:
    """Give a file another name; a file that has it is replaced."""
    path.replace(to)


def make_empty(path: Path, *, mode: int) -> None:
    """Make an empty file. Raises OSError if there is one."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode))


def make_private_file(path: Path) -> None:
    """Let only its owner read a file."""
    path.chmod(0o600)


def delete(path: Path) -> None:
    """Delete a file if it is there."""
    path.unlink(missing_ok=True)


def cut_to(path: Path, length_bytes: int) -> None:
    """Cut a file off after this many bytes."""
    os.truncate(path, length_bytes)


def has_torn_line(path: Path) -> bool:
    """Whether the end of the last line of a file is missing: its writer was killed."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def drop_torn_line(path: Path) -> None:
    """Cut off the last line of a file if its end is missing."""
    if has_torn_line(path):
        cut_to(path, path.read_bytes().rfind(b"\n") + 1)


def head(path: str, most_bytes: int) -> bytes:
    """The beginning of a file, empty if it cannot be read."""
    try:
        return _content(path, most_bytes)
    except (OSError, ValueError):
        return b""


def read_document(path: str | os.PathLike[str], *, most_bytes: int = READ_LIMIT_BYTES) -> str:
    """Read a UTF-8 file that a person or a program wrote, without its BOM.

    Raises OSError with a readable ``strerror``, also if it is not a regular file or too large.
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
        raise OSError(errno.EILSEQ, "it is not UTF-8 text", path) from error


def _content(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Read the beginning of a regular file. Other files are not opened: a fifo would wait for a
    writer, and a device may have effects.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    content = bytearray()
    with open(path, "rb", buffering=0) as file:
        while len(content) < most_bytes and (piece := file.read(READ_AT_ONCE_BYTES)):
            content += piece
    return bytes(content[:most_bytes])


def write_atomically(path: Path, text: str, *, force: bool = False, mode: int = 0o644) -> None:
    """Write a whole file or nothing. Raises UsageError if it exists and ``force`` is not set."""
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", hint="--force replaces it")
    temporary = None
    try:
        _remove_leftovers(path)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        TEMPORARY_FILES.add(Path(temporary))
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
            hint="choose another path, or make this one writable",
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):  # os.replace has moved it
                os.unlink(temporary)
            TEMPORARY_FILES.discard(Path(temporary))


# Bytes that a trial write needs: more than a usual result has.
ROOM_BYTES = 1 << 17


def require_writable(path: Path) -> None:
    """Raise CputuneError unless a file can be written at ``path``. It is tried, hours before the
    result is written.
    """
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(
            f"the directory {folder} does not exist", hint=f"mkdir -p {folder}, or choose another"
        )
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise UsageError(f"{path} is not a regular file", hint="give the path of a file")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}.") as probe:
            probe.write(bytes(ROOM_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
        if path.exists() and path.stat().st_uid == os.geteuid():
            status = path.stat()
            # An immutable file (chattr +i) cannot be replaced, and its times cannot be set either.
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    except OSError as error:
        raise CannotError(
            f"cannot write to {path}: {(error.strerror or str(error)).lower()}",
            hint="free space, make it writable, or choose another place with -o and --study",
        ) from error


def write_somewhere(name: str, text: str) -> Path | None:
    """Write a temporary file for the user alone. None if that fails."""
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


def _remove_leftovers(path: Path) -> None:
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.????????"):
        with contextlib.suppress(OSError):
            status = leftover.lstat()
            if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > LEFT_SECONDS:
                leftover.unlink()


def _umask() -> int:
    mask = os.umask(0o077)  # the umask can only be read by setting it
    os.umask(mask)
    return mask


def write_tree(directory: Path, files: Mapping[str, str]) -> None:
    """Write a directory of relative paths and their texts, whole or not at all.

    Raises UsageError if it exists and is not empty, CannotError if it cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(
            f"{directory} exists already", hint="give a new directory, or an empty one"
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
            hint="choose another directory for the recording",
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def user_folder(kind: Literal["config", "state"]) -> Path | None:
    """``~/.config/cputune`` or ``~/.local/state/cputune``. None if there is no home folder.

    ``$XDG_CONFIG_HOME`` and ``$XDG_STATE_HOME`` replace their parents; relative paths in them are
    ignored (XDG Base Directory Specification 0.8).
    """
    from platformdirs import user_config_path, user_state_path

    path = user_config_path
    if kind == "state":
        path = user_state_path
    try:
        folder = path("cputune", appauthor=False)
    except (RuntimeError, OSError, ImportError):  # ImportError: a damaged Python installation
        return None
    if folder.is_absolute():
        return folder
    return None


def make_private(folder: Path) -> None:
    """Make a folder that only the user can read. Raises CannotError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CannotError(
            f"cannot make {folder}: {error.strerror}", hint="set XDG_STATE_HOME to another folder"
        ) from error


def own_files(folder: Path, suffix: str) -> list[str]:
    """Names of the regular files of a folder with this suffix, without links."""
    names = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name.endswith(suffix) and not path.is_symlink() and path.is_file():
                names.append(path.name)
    return names


def remove(folder: Path, names: Iterable[str]) -> None:
    """Remove files of a folder. Files that cannot be removed are ignored."""
    for name in names:
        with contextlib.suppress(OSError):
            (folder / name).unlink()
