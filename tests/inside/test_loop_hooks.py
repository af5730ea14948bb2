"""A trial saves no files."""

from __future__ import annotations

import io

from cputune.inside.loops import Loops
from cputune.inside.messages import Speaker
from cputune.inside.meter import Meter


def test_files_are_saved_before_training_and_not_while_it_trains() -> None:
    loops, saved = Loops(Meter(Speaker(""))), []

    def save(obj: object, f: object) -> None:
        saved.append(f)

    (put,) = (
        called for module, what, called in loops.hooks() if (module, what) == ("torch", "save")
    )
    put(save, "x", "before")
    loops.meter.framework = "trainer"
    memory = io.BytesIO()
    for where in ("while", memory):
        put(save, "x", where)
    assert saved == ["before", memory]
