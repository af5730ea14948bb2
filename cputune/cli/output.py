"""Writes output: products to stdout, everything else to stderr.

A product that cannot be written is an error; a lost stderr is ignored.
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

# State of the output: its level, whether it is JSON, the handlers that were added to the log.
_verbosity = 0  # -1 with -q, 1 and 2 with -v and -vv
_json = False
_handlers: list[logging.Handler] = []


def verbosity() -> int:
    """-1 only errors (-q), 0 normal, 1 and 2 more (-v, -vv)."""
    return _verbosity


def set_verbosity(level: int) -> None:
    """Set the level of output. From 1 on, the log of cputune is printed."""
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
        # The progress lines already show the events of a study.
        handler.addFilter(lambda record: record.name != "cputune.events")
        handler.emit = lambda record: print_line(  # type: ignore[method-assign]
            f"{record.name}: {record.getMessage()}"
        )
        log.addHandler(handler)
        _handlers.append(handler)


def set_json(requested: bool) -> None:
    """Set whether the product is JSON. Errors are then also printed as JSON."""
    global _json
    _json = requested


def console(stream: IO[str] | None = None, *, alive: bool = False) -> Console:
    """A rich console for a stream, by default stdout.

    rich respects NO_COLOR, FORCE_COLOR and TERM. ``alive``: the width is read again each time, for
    a terminal that may be resized.
    """
    from rich.console import Console

    class ShownConsole(Console):
        """A console that never hides the cursor, however this process ends."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    stream = stream or sys.stdout
    file: IO[str] = stream
    if not stream.isatty():
        file = cast("IO[str]", _Unpadded(stream))
    width = None
    if not alive:
        # The width of the terminal, or of COLUMNS, but never too small to read.
        width = min(max(shutil.get_terminal_size((100, 24)).columns, 40), 1000)
    return ShownConsole(
        file=file,
        width=width,
        _environ={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")},
        highlight=False,
        emoji=False,
        markup=False,
    )


class _Unpadded:
    """Output to a pipe or a file, without trailing blanks."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(re.sub(r"[ \t]+(?=(?:\x1b\[[0-9;]*m)*\n)", "", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_line(text: str) -> None:
    """Print a line on stderr, cleaned of control characters, unless -q."""
    if _verbosity >= 0:
        _write_line(visible(text))


def _write_line(line: str) -> None:
    try:
        sys.stderr.write(line + "\n")
    except OSError:
        lose(2)


def print_json(document: object) -> None:
    """Print one document on stdout, in ASCII, which every stream can encode."""
    import json  # imported here: `cputune --help` does not need it

    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def print_traceback(error: BaseException) -> None:
    """Print the traceback on stderr, cleaned line by line: an error may quote text from outside."""
    import traceback

    for part in traceback.format_exception(error):
        for line in part.rstrip("\n").split("\n"):
            print_line("  " + line)  # indented, so that a quoted line cannot look like cputune's


def report_error(error: CputuneError) -> int:
    """Print ``error:`` and ``hint:`` on stderr, and with ``--json`` a document on stdout;
    returns the exit code.
    """
    if _json:
        content: dict[str, object] = {"message": str(error), "hint": error.hint}
        if error.details:
            content["details"] = error.details
        content["exit_code"] = error.exit_code
        print_json({"schema": "cputune.error/1", "error": content})
    _write_line(f"error: {visible(str(error))}")
    for line in (error.details or "").splitlines():
        _write_line(f"  {visible(line)}")
    if error.hint:
        _write_line(f"hint: {visible(error.hint)}")
    return error.exit_code


def guard_streams() -> None:
    """Make stdout and stderr accept every character.

    Characters that a stream cannot encode are replaced. Closed descriptors 0 to 2 are opened on
    /dev/null, read-only, because otherwise the next opened file would become the stdout of every
    child.
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
    """Discard stdout (1) or stderr (2) from now on, including what is buffered."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
