"""Progress of ``tune``: a live view on a terminal, else a line for each trial."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cputune.cli.output import console, print_line, verbosity
from cputune.cli.signals import stop_if_interrupted
from cputune.report.live_view import Standing, live_lines
from cputune.report.study_table import is_kept, line_of, style_of
from cputune.text.plain import visible
from cputune.tuner.events import Event, OnEvent, StudyEnded, TrialEnded

if TYPE_CHECKING:
    from rich.live import Live

# A redraw takes one or two milliseconds of the measured time.
_REFRESH_PER_SECOND = 1

# Without a terminal, a line says at least this often what goes on.
SILENT_SECONDS = 30.0


@contextmanager
def progress(started: float, most_seconds: float | None = None) -> Iterator[OnEvent]:
    """Show a study on stderr while the block runs. The yielded function takes its events."""
    standing = Standing(started=started)
    if most_seconds is not None:
        standing.most_seconds = most_seconds
    live = None
    if verbosity() == 0 and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        live = _live(standing)
    waiting = Waiting(standing)

    def show(event: Event) -> None:
        if not isinstance(event, StudyEnded):
            stop_if_interrupted()
        standing.take(event)
        line = line_of(event)
        if live is not None:
            if line is not None and is_kept(event):
                one_line = isinstance(event, TrialEnded)
                live.console.print(
                    visible(line), style=style_of(event), no_wrap=one_line, overflow="ellipsis"
                )
        elif isinstance(event, TrialEnded):
            waiting.print_line(f"{line}  [{standing.tail(time.monotonic())}]")
        elif line is not None:
            waiting.print_line(line)
        if live is not None:
            live.refresh()

    with live or waiting:
        yield show


class Waiting:
    """Prints lines, and after SILENT_SECONDS without one what the study is waiting for.

    Its thread sleeps in between, so it costs the measurement nothing.
    """

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._printed_at = time.monotonic()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def print_line(self, line: str) -> None:
        """Print a line."""
        self._printed_at = time.monotonic()
        print_line(line)

    def _watch(self) -> None:
        seconds_left = SILENT_SECONDS
        while not self._has_ended.wait(seconds_left):
            seconds_left = self._printed_at + SILENT_SECONDS - time.monotonic()
            if seconds_left > 0:
                continue
            doing = self._standing.doing
            if self._standing.detail:
                doing += f": {self._standing.detail}"
            self.print_line(f"still {visible(doing)}  [{self._standing.tail(time.monotonic())}]")
            seconds_left = SILENT_SECONDS

    def __enter__(self) -> Waiting:
        if verbosity() >= 0:
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._has_ended.set()
        if self._thread.is_alive():
            self._thread.join()


def _live(standing: Standing) -> Live:
    from rich.console import Group
    from rich.live import Live

    out = console(sys.stderr, alive=True)
    return Live(
        get_renderable=lambda: Group(*live_lines(standing, time.monotonic(), out.width)),
        console=out,
        refresh_per_second=_REFRESH_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
