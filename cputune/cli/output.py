"""Where text leaves the program: products on stdout, all else on stderr, colour by stream.

Where a product cannot be written, that is an error. Progress and notes are not worth ending a
study: where stderr is lost, they are lost silently.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import re
import shutil
import sys
from typing import IO, TYPE_CHECKING, Any, cast

import click

from cputune.errors import CannotError, CputuneError
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
    _say_in("red", "error:", str(error))
    for line in (error.details or "").splitlines():
        sys.stderr.write(f"  {visible(line)}\n")
    if error.hint:
        _say_in("yellow", "hint:", error.hint)
    return error.exit_code


def _say_in(color: str, sign: str, text: str) -> None:
    shown = click.style(sign, fg=color) if wants_color(sys.stderr) else sign
    sys.stderr.write(f"{shown} {visible(text)}\n")


class OutputError(CannotError):
    """The product cannot be written: the disk is full, stdout is closed, its reader is gone."""


class _Guarded(io.FileIO):
    """Turns a failed write into an OutputError, which click and rich let through.

    It is told once: what is left in buffers is dropped. For stderr the failure is ignored: it is
    not worth the end of a study.
    """

    _lost = False

    def write(self, data: Any) -> int:
        if self._lost:
            return len(data)
        try:
            return super().write(data) or 0
        except OSError as error:
            if self.fileno() == 2:
                return len(data)
            self._lost = True
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
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):
            guarded = io.TextIOWrapper(
                io.BufferedWriter(_Guarded(number, "w", closefd=False)),
                encoding=stream.encoding if stream else "utf-8",
                errors=spelled.__name__,
                line_buffering=number == 2,
            )
            setattr(sys, name, guarded)
