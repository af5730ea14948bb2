"""Where text leaves the program: products on stdout, all else on stderr, colour by stream.

Where a product cannot be written, that is an error. Progress and notes are not worth ending a
study: where stderr is lost, they are lost silently.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from cputune.errors import CannotError, CputuneError, UsageError
from cputune.text import spelled, visible

if TYPE_CHECKING:
    import logging

    from rich.console import Console

_color = "auto"
_verbosity = 0
_json = False
_handler: logging.Handler | None = None


def set_color(choice: str) -> None:
    """Remember ``--color``: auto, always or never."""
    global _color
    _color = choice


def verbosity() -> int:
    """How much is said: -1 errors alone (-q), 0 as usual, 1 and 2 more (-v, -vv)."""
    return _verbosity


def set_verbosity(level: int) -> None:
    """Remember how much is to be said, and let what cputune logs be heard from 1 on."""
    global _verbosity, _handler
    _verbosity = level
    if level <= 0 and _handler is None:
        return
    import logging  # imported here, because it takes a while

    from cputune.log import log

    if _handler is None:
        _handler = logging.Handler()
        # The progress lines show the events of a study already.
        _handler.addFilter(lambda record: record.name != "cputune.events")
        _handler.emit = lambda record: tell(  # type: ignore[method-assign]
            f"{record.name}: {record.getMessage()}"
        )
    log.removeHandler(_handler)
    if level > 0:
        log.addHandler(_handler)
    log.setLevel(logging.DEBUG if level > 1 else logging.INFO if level else logging.NOTSET)


def set_json(asked: bool) -> None:
    """Remember whether a document is asked for: then errors are one, too."""
    global _json
    _json = asked


def wants_color(stream: IO[str]) -> bool:
    """``--color`` beats NO_COLOR beats FORCE_COLOR beats whether the stream is a terminal."""
    if _color != "auto":
        return _color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def console(stream: IO[str] | None = None, *, alive: bool = False) -> Console:
    """A rich console on a stream (stdout where none is given).

    Plain text where colour is not wanted, and lines without blanks at their ends where nobody
    looks on. ``alive``: on a terminal that may change its size, its width is looked up each time.
    """
    from rich.console import Console

    class ShownConsole(Console):
        """A console that never hides the cursor, so that it is there however this process ends."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    stream = sys.stdout if stream is None else stream
    color = wants_color(stream)
    return ShownConsole(
        file=stream if stream.isatty() else cast("IO[str]", _Unpadded(stream)),
        force_terminal=alive or color or None,
        no_color=not color,
        # Of the terminal, or as COLUMNS says; never too few to read.
        width=None if alive else min(max(shutil.get_terminal_size((100, 24)).columns, 40), 1000),
        _environ={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")},
        highlight=False,
        emoji=False,
        markup=False,
        soft_wrap=False,
    )


class _Unpadded:
    """Output for a pipe or a file: a table's last column is not padded with blanks."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(re.sub(r"[ \t]+(?=(?:\x1b\[[0-9;]*m)*\n)", "", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def tell(text: str) -> None:
    """Print a line on stderr, whatever is in its text; nothing with -q."""
    if _verbosity >= 0:
        sys.stderr.write(visible(text) + "\n")


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise UsageError where a file could not be written, or would be replaced."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no directory {path.parent}", hint="make it, or choose another")
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", hint="give --force to replace it")


def print_json(document: object) -> None:
    """One document on stdout and nothing more."""
    sys.stdout.write(json_text(document))


def json_text(document: object) -> str:
    """The document in ASCII, which every stream carries: other characters are escaped."""
    import json  # imported here: `cputune --help` does not need it

    return json.dumps(document, indent=2) + "\n"


def print_traceback(error: BaseException) -> None:
    """The traceback on stderr, line by line: an error may quote what comes from outside."""
    import traceback

    for part in traceback.format_exception(error):
        for line in part.rstrip("\n").split("\n"):
            tell("  " + line)  # so that no quoted line looks like cputune's


def report_error(error: CputuneError) -> int:
    """``error:`` and ``hint:`` on stderr; with ``--json`` a document on stdout too.

    Returns the exit code of the error.
    """
    if _json:
        print_json(
            {
                "schema": "cputune.error/1",
                "error": {
                    "message": str(error),
                    "hint": error.hint,
                    **({"details": error.details} if error.details else {}),
                    "exit_code": error.exit_code,
                },
            }
        )
    red, yellow, plain = (
        ("\x1b[31m", "\x1b[33m", "\x1b[0m") if wants_color(sys.stderr) else ("", "", "")
    )
    sys.stderr.write(f"{red}error:{plain} {visible(str(error))}\n")
    for line in (error.details or "").splitlines():
        sys.stderr.write(f"  {visible(line)}\n")
    if error.hint:
        sys.stderr.write(f"{yellow}hint:{plain} {visible(error.hint)}\n")
    return error.exit_code


class OutputError(CannotError):
    """The product cannot be written: the disk is full, stdout is closed, its reader is gone."""


class _Guarded(io.TextIOWrapper):
    """Turns a failed write into an OutputError, which click and rich let through.

    For stderr the failure is ignored: it is not worth the end of a study.
    """

    def write(self, text: str) -> int:
        with self._guard():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._guard():
            super().flush()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self.line_buffering:  # stderr
                return
            said = f"the output cannot be written: {error.strerror or error}"
            lost = OutputError(said, hint="make room, or send it elsewhere")
            if error.errno == errno.EPIPE:
                lost.exit_code = 141  # what a shell shows for a program that SIGPIPE ended
            raise lost from error


def guard_streams() -> None:
    """Put guards before stdout and stderr, where they are the process's own.

    Characters that a stream cannot encode are spelled with others. Descriptors 0 to 2 that are
    closed are opened on /dev/null, or the next file that is opened would be the stdout
    of every child. Read-only: what is written there fails, as it would if they were closed.
    """
    codecs.register_error(spelled.__name__, spelled)
    while (number := os.open(os.devnull, os.O_RDONLY)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _guarded(sys.__stdout__, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _guarded(sys.__stderr__, 2)


def _guarded(stream: TextIO | None, number: int) -> _Guarded:
    raw = os.fdopen(number, "wb", closefd=False) if stream is None else stream.buffer
    encoding = "utf-8" if stream is None else stream.encoding
    return _Guarded(raw, encoding=encoding, errors=spelled.__name__, line_buffering=number == 2)


def drop_output() -> None:
    """Let nothing more be written to stdout: what is left in buffers would fail again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
