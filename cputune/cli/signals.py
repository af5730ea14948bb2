"""Handles signals in two stages: the first one stops and saves, a second Ctrl-C ends at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from cputune.cli.output import lose
from cputune.errors import Interrupted

# Signals of keys: a second one ends at once. Schedulers and terminals send other signals
# several times.
_AGAIN = [getattr(signal, name) for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name)]

_came = False


class Stopped(KeyboardInterrupt):
    """Raised when one of these signals arrives.

    Not KeyboardInterrupt: if that is raised while Python runs source text (as SQLAlchemy does),
    Python finally dies of SIGINT, whatever the exit code (``run_eval_code_obj`` in
    Python/pythonrun.c).
    """


@contextmanager
def interrupted_by(numbers: Collection[int]) -> Iterator[None]:
    """While the block runs, the first of these signals raises Stopped.

    Later signals are ignored, so that the block can clean up, except those of keys: a second Ctrl-C
    (or QUIT) ends everything that was started, and then this process with 130. They stay ignored
    afterwards, so that the process ends with its own exit code.
    """
    global _came
    _came = False
    before = {number: signal.getsignal(number) for number in numbers}

    def interrupt(number: int, frame: FrameType | None) -> None:
        global _came
        _came = True
        for signum in numbers:
            if signum in _AGAIN:
                signal.signal(signum, _end_at_once)
            else:
                signal.signal(signum, signal.SIG_IGN)
        _leave_a_lost_terminal()
        raise Stopped

    for number in numbers:
        signal.signal(number, interrupt)
    shown = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if lost.exc_type is Stopped else shown(lost)
    try:
        yield
    finally:
        sys.unraisablehook = shown
        for number, handler in before.items():
            if _came:
                handler = signal.SIG_IGN
            signal.signal(number, handler)


def stop_if_interrupted() -> None:
    """Raise Stopped again, for a signal that came in a finalizer, whose exceptions Python drops
    (``sys.unraisablehook``).
    """
    if _came:
        raise Stopped


def _end_at_once(number: int, frame: FrameType | None) -> None:
    for signum in _AGAIN:
        signal.signal(signum, signal.SIG_IGN)
    try:
        os.write(2, b"\nerror: interrupted twice: ended at once\n")
        lose(2)  # other threads may report closed files
    finally:
        from cputune.host.children import leave

        leave(Interrupted.exit_code)


def _leave_a_lost_terminal() -> None:
    """If SIGHUP means that the terminal is gone, write to /dev/null instead of failing."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            lose(stream)
