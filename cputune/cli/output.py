"""Where text leaves the program: products on stdout, all else on stderr.

Where a product cannot be written, that is an error. Progress and notes are not worth ending a
study: where stderr is lost, they are lost silently.
"""

from __future__ import annotations

import codecs
import os
import re
import shutil
import sys
from typing import IO, TYPE_CHECKING, Any, cast

from cputune.errors import CputuneError
from cputune.text.plain import spelled, visible

if TYPE_CHECKING:
    import logging

    from rich.console import Console

_verbosity = 0
_json = False
_handlers: list[logging.Handler] = []
"""The handlers of the log that were added."""


def verbosity() -> int:
    """How much is said: -1 errors alone (-q), 0 as usual, 1 and 2 more (-v, -vv)."""
    return _verbosity


def set_verbosity(level: int) -> None:
    """Remember how much is to be said, and let what cputune logs be heard from 1 on."""
    global _verbosity
    _verbosity = level
    if level <= 0 and not _handlers:
        return
    import logging  # imported here, because it takes a while

    from cputune.text.log import log

    while _handlers:
        log.removeHandler(_handlers.pop())
    log.setLevel({0: logging.NOTSET, 1: logging.INFO}.get(level, logging.DEBUG))
    if level > 0:
        handler = logging.Handler()
        # The progress lines show the events of a study already.
        handler.addFilter(lambda record: record.name != "cputune.events")
        handler.emit = lambda record: tell(  # type: ignore[method-assign]
            f"{record.name}: {record.getMessage()}"
        )
        log.addHandler(handler)
        _handlers.append(handler)


def set_json(asked: bool) -> None:
    """Remember whether a document is asked for: then errors are one, too."""
    global _json
    _json = asked


def console(stream: IO[str] | None = None, *, alive: bool = False) -> Console:
    """A rich console on a stream (stdout where none is given).

    rich honours NO_COLOR, FORCE_COLOR and TERM. Lines have no blanks at their ends where nobody
    looks on. ``alive``: on a terminal that may change its size, its width is looked up each time.
    """
    from rich.console import Console

    class ShownConsole(Console):
        """A console that never hides the cursor, so that it is there however this process ends."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    stream = sys.stdout if stream is None else stream
    return ShownConsole(
        file=stream if stream.isatty() else cast("IO[str]", _Unpadded(stream)),
        # Of the terminal, or as COLUMNS says; never too few to read.
        width=None if alive else min(max(shutil.get_terminal_size((100, 24)).columns, 40), 1000),
        _environ={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")},
        highlight=False,
        emoji=False,
        markup=False,
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
        _say(visible(text))


def _say(line: str) -> None:
    try:
        sys.stderr.write(line + "\n")
    except OSError:
        lose(2)


def print_json(document: object) -> None:
    """One document on stdout and nothing more, in ASCII, which every stream carries."""
    import json  # imported here: `cputune --help` does not need it

    sys.stdout.write(json.dumps(document, indent=2) + "\n")


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
        said: dict[str, object] = {"message": str(error), "hint": error.hint}
        said |= {"details": error.details} if error.details else {}
        said |= {"exit_code": error.exit_code}
        print_json({"schema": "cputune.error/1", "error": said})
    _say(f"error: {visible(str(error))}")
    for line in (error.details or "").splitlines():
        _say(f"  {visible(line)}")
    if error.hint:
        _say(f"hint: {visible(error.hint)}")
    return error.exit_code


def guard_streams() -> None:
    """Let stdout and stderr, where they are the process's own, write every character.

    Characters that a stream cannot encode are spelled with others. Descriptors 0 to 2 that are
    closed are opened on /dev/null, or the next file that is opened would be the stdout
    of every child. Read-only: what is written there fails, as it would if they were closed.
    """
    codecs.register_error(spelled.__name__, spelled)
    while (number := os.open(os.devnull, os.O_RDONLY)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115
        elif getattr(sys, name) is getattr(sys, f"__{name}__"):
            getattr(sys, name).reconfigure(errors=spelled.__name__)


def lose(number: int) -> None:
    """Send stdout (1) or stderr (2) nowhere from now on, with what its buffer still holds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
