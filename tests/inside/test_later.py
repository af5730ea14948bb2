"""A Trainer has the counters of a later step for a while."""

from __future__ import annotations

from types import SimpleNamespace

from rows import every_row

from cputune.inside.later import at_step, later_steps


def trainer(step: int) -> SimpleNamespace:
    return SimpleNamespace(state=SimpleNamespace(global_step=step, epoch=step / 10))


def test_its_counters_are_as_before() -> None:
    held = trainer(2)
    with at_step(held, 50):
        assert (held.state.global_step, held.state.epoch) == (50, 5.0)
    assert (held.state.global_step, held.state.epoch) == (2, 0.2)


def test_what_is_no_trainer_has_no_later_steps() -> None:
    assert later_steps(None, 100) == []
    assert later_steps(SimpleNamespace(state="train"), 100) == []


@every_row(
    ("step", "steps", "later"),
    [
        (2, 100, [24, 49, 74, 99]),
        (30, 100, [49, 74, 99]),
        (2, None, []),
        (0, 100, []),
        (2, 2, []),
    ],
)
def test_a_loss_is_asked_at_the_last_step_of_each_quarter(
    step: int, steps: int | None, later: list[int]
) -> None:
    assert later_steps(trainer(step), steps) == later
