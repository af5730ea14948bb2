"""What ``tune`` says while it runs: a live view on a terminal, else a line for each trial."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from cputune.cli.output import console, tell, verbosity
from cputune.cli.signals import stop_if_interrupted
from cputune.report.tuning import Standing, line_of, live_lines, style_of
from cputune.text import visible
from cputune.tuner.events import StudyEnded, TrialEnded

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live

    from cputune.tuner.events import Event

_REFRESH_PER_SECOND = 1
"""Seconds between redraws, beside one for each event. A redraw takes a millisecond or two of the
time that is measured."""


class Progress(AbstractContextManager["Progress"]):
    """Shows a study on stderr, event by event.

    ``started`` is when the command began, ``most_seconds`` the time that it was given.
    """

    def __init__(
        self,
        started: float,
        most_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        most = math.inf if most_seconds is None else most_seconds
        self._standing = Standing(started=started, most_seconds=most)
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if verbosity() == 0 and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.live import Live

            out = console(sys.stderr, alive=True)
            self._live = Live(
                get_renderable=lambda: self._draw(out),
                console=out,
                refresh_per_second=_REFRESH_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Take an event, and print what users should know of it."""
        if not isinstance(event, StudyEnded):
            stop_if_interrupted()
        now = self._clock()
        self._standing.take(event)
        line = line_of(event)
        if self._live is None:
            if line is not None and isinstance(event, TrialEnded):
                line = f"{line}  {self._standing.tail(now)}"
            if line is not None:
                tell(line)
            sys.stderr.flush()
            return
        if line is not None:
            self._live.console.print(visible(line), style=style_of(event))
        self._live.refresh()

    def _draw(self, console: Console) -> Group:
        from rich.console import Group

        return Group(*live_lines(self._standing, self._clock(), console.width))
