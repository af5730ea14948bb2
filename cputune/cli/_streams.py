"""The two streams of the program: what happens where one of them is closed, full or lost.

A product that cannot be written is an error. What is said beside it (progress, notes) is
not worth the end of a study: where stderr is lost, it is silent.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any, BinaryIO, TextIO

from cputune.errors import CannotError


class OutputError(CannotError):
    """The product cannot be written: the disk is full, stdout is closed, its reader is gone."""


class _Product(io.TextIOWrapper):
    """stdout: what the system refuses is an ``OutputError``, which click and rich let through."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _lost(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _lost(error) from error


class _Beside(io.TextIOWrapper):
    """stderr: what cannot be written is left unsaid."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


def guard_streams() -> None:
    """Put guards before stdout and stderr, where they are the process's own.

    Characters that a stream cannot encode appear as escapes. Descriptors 0 to 2 that are
    closed are opened on /dev/null, or the next file that is opened would be the stdout
    of every child.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _occupy_closed_descriptors()
    if sys.stdout is sys.__stdout__:
        sys.stdout = _wrapped(sys.__stdout__, _Product, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _wrapped(sys.__stderr__, _Beside, 2)


def drop_output() -> None:
    """Let nothing more be written to stdout: what is left in buffers would fail again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


def _occupy_closed_descriptors() -> None:
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Read-only for all: what is written to it fails, as it would if it were closed.
            opened = os.open(os.devnull, os.O_RDONLY)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)


def _wrapped(stream: TextIO | None, guard: type[io.TextIOWrapper], number: int) -> Any:
    raw: BinaryIO
    if stream is None:
        raw, encoding = os.fdopen(number, "wb", closefd=False), "utf-8"
    else:
        raw, encoding = stream.buffer, stream.encoding
    return guard(raw, encoding=encoding, errors="backslashreplace", line_buffering=number == 2)


def _lost(error: OSError) -> OutputError:
    lost = OutputError(
        f"the output cannot be written: {error.strerror or error}",
        hint="make room, or send it elsewhere",
    )
    if error.errno == errno.EPIPE:
        lost.exit_code = 141  # what a shell shows for a program that SIGPIPE ended
    return lost
