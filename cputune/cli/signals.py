"""SIGTERM and SIGHUP interrupt as Ctrl-C does, so that a scheduler loses nothing either."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

UNTOUCHED = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
if hasattr(signal, "SIGHUP"):  # Windows has none
    UNTOUCHED[signal.SIGHUP] = signal.SIG_DFL
"""The signals, and what Python does with them where nobody asks for something else."""

_came = False


class Stopped(KeyboardInterrupt):
    """One of these signals came.

    Not KeyboardInterrupt itself: where that is raised while Python runs the text of a
    program (SQLAlchemy makes some of its functions so), Python notes it, and ends by SIGINT
    in the end, whatever exit code it is given (``run_eval_code_obj`` in Python/pythonrun.c).
    """


@contextmanager
def interrupted_by_any_signal() -> Iterator[None]:
    """While the block runs, the first of these signals raises Stopped.

    Those that follow are passed over until the process ends: what the first one has begun
    shall come to its end. Only another Ctrl-C interrupts that too. A signal that is ignored
    from the start stays ignored (nohup).
    """
    global _came
    _came = False
    ours = {n: usual for n, usual in UNTOUCHED.items() if signal.getsignal(n) is usual}

    def interrupt(number: int, frame: FrameType | None) -> None:
        global _came
        _came = True
        for one, usual in ours.items():
            signal.signal(one, usual if one == signal.SIGINT else signal.SIG_IGN)
        _leave_a_lost_terminal()
        raise Stopped

    for number in ours:
        signal.signal(number, interrupt)
    shown = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if lost.exc_type is Stopped else shown(lost)
    try:
        yield
    finally:
        sys.unraisablehook = shown
        for number, usual in ours.items():
            if signal.getsignal(number) is interrupt:
                signal.signal(number, usual)


def stop_if_interrupted() -> None:
    """Raise Stopped again, for a signal that came while nothing could be raised.

    Python drops what is raised in a finalizer (``sys.unraisablehook``), and goes on.
    """
    if _came:
        raise Stopped


def _leave_a_lost_terminal() -> None:
    """Where SIGHUP means that the terminal is gone, write to nowhere instead of failing."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)
