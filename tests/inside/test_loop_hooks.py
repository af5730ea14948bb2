"""A trial saves no files, and looks at the gradients of every optimizer."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

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


def closures(optimizer: object, closure: Callable[[], float], *, named: bool) -> list[object]:
    """What the gradients were when they were looked at, with a closure handed to a step."""
    loops, looked = Loops(Meter(Speaker(""))), []
    loops.meter.framework = "trainer"
    loops.meter.first.before_step = lambda *given: looked.append(given)  # type: ignore[method-assign]
    if named:
        given = loops._before_step(optimizer, (), {"closure": closure})
    else:
        given = loops._before_step(optimizer, (closure,), {})
    assert looked == [], "the gradients are not there yet"
    (put,) = (*given[0], *given[1].values())
    assert put() == 3.0
    return looked


@pytest.mark.parametrize("named", [False, True])
def test_the_gradients_of_a_closure_are_looked_at_when_it_returns(named: bool) -> None:
    optimizer = object()
    assert closures(optimizer, lambda: 3.0, named=named) == [(optimizer, (), {})]


def test_an_optimizer_without_a_closure_is_looked_at_before_it_steps() -> None:
    loops, looked = Loops(Meter(Speaker(""))), []
    loops.meter.framework = "trainer"
    loops.meter.first.before_step = lambda *given: looked.append(given)  # type: ignore[method-assign]
    assert loops._before_step("optimizer", (), {}) is None
    assert looked == [("optimizer", (), {})]
