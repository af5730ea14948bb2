"""SIGTERM and SIGHUP interrupt as Ctrl-C does, so that a scheduler loses nothing either."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)

_came = False


@contextmanager
def interrupted_by_any_signal() -> Iterator[None]:
    """While the block runs, the first of these signals raises KeyboardInterrupt.

    Those that follow are passed over until the process ends: what the first one has begun
    shall come to its end. A signal that is ignored from the start stays ignored (nohup).
    """
    global _came
    _came = False
    ours = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]

    def interrupt(number: int, frame: FrameType | None) -> None:
        global _came
        _came = True
        for one in ours:
            signal.signal(one, signal.SIG_IGN)
        _leave_a_lost_terminal()
        raise KeyboardInterrupt

    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is interrupt:
                signal.signal(number, signal.SIG_DFL)


def stop_if_interrupted() -> None:
    """Raise KeyboardInterrupt again, for a signal that came while nothing could be raised.

    Python drops what is raised in a finalizer, and goes on.
    """
    if _came:
        raise KeyboardInterrupt


def _leave_a_lost_terminal() -> None:
    """Where SIGHUP means that the terminal is gone, write to nowhere instead of failing."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)
