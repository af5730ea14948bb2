"""What ``tune`` says while it runs: a live view on a terminal, else a line for each trial."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cputune.cli.output import console, tell, verbosity
from cputune.cli.signals import stop_if_interrupted
from cputune.report.tuning import Standing, line_of, live_lines, style_of
from cputune.text import visible
from cputune.tuner.events import Event, OnEvent, StudyEnded, TrialEnded

_REFRESH_PER_SECOND = 1
"""Seconds between redraws, beside one for each event. A redraw takes a millisecond or two of the
time that is measured."""


@contextmanager
def progress(started: float, most_seconds: float | None = None) -> Iterator[OnEvent]:
    """Show a study on stderr while the block runs: what is yielded hears its events.

    ``started`` is when the command began, ``most_seconds`` the time that it was given.
    """
    standing = Standing(
        started=started, most_seconds=math.inf if most_seconds is None else most_seconds
    )
    if verbosity() != 0 or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":

        def log(event: Event) -> None:
            _goes_on(event)
            standing.take(event)
            line = line_of(event)
            if line is not None:
                tail = f"  {standing.tail(time.monotonic())}" * isinstance(event, TrialEnded)
                tell(line + tail)

        yield log
        return
    from rich.console import Group
    from rich.live import Live

    out = console(sys.stderr, alive=True)
    with Live(
        get_renderable=lambda: Group(*live_lines(standing, time.monotonic(), out.width)),
        console=out,
        refresh_per_second=_REFRESH_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as live:

        def draw(event: Event) -> None:
            _goes_on(event)
            standing.take(event)
            line = line_of(event)
            if line is not None:
                live.console.print(visible(line), style=style_of(event))
            live.refresh()

        yield draw


def _goes_on(event: Event) -> None:
    if not isinstance(event, StudyEnded):
        stop_if_interrupted()
