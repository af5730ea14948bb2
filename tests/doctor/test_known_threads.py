"""Threads of users: what was met there is found, in words that name it."""

from __future__ import annotations

from known_threads import THREADS, Thread, said
from rows import every_row

from cputune.doctor.checks import CHECKS

CODES = {check.code for check in CHECKS}


@every_row("thread", THREADS, ids=lambda thread: thread.name)
def test_what_was_met_is_found(thread: Thread) -> None:
    words = list(said(thread))
    assert words
    assert thread.found in CODES or thread.found in words[0]


def test_there_are_at_least_forty() -> None:
    assert len({thread.name for thread in THREADS}) == len(THREADS) >= 40
