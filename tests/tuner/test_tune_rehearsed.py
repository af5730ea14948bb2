"""A plan of another number of ranks is compared only after the whole script has run with it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

import pytest
from golden_texts import Golden
from rows import every_row
from tuner.fakes import VARIED, FakeLife, FakeRunner, Heard, tune

from cputune import Plan, Result, Step
from cputune.records.steps import RehearsalEnd


class Rehearsing(FakeRunner):
    """Two ranks are the fastest; ``end`` is how their rehearsal ends."""

    def __init__(self, end: RehearsalEnd | None) -> None:
        super().__init__(two_are_faster)
        self.end = end
        self.rehearsals: list[tuple[int, float]] = []

    def living(self, plan: Plan) -> FakeLife:
        return FakeLife(self.steps(plan))

    def rehearse(self, plan: Plan, seconds: float) -> RehearsalEnd | None:
        self.rehearsals.append((plan.world_size, seconds))
        return self.end


def two_are_faster(plan: Plan, before: int) -> Iterable[Step]:
    seconds = 1.0
    if not plan.as_found:
        seconds = 0.5 if plan.world_size == 2 else 0.8
    return repeat(Step(seconds, 8))


def tuned(runner: Rehearsing, **more: object) -> tuple[Result, list[str]]:
    said = Heard()
    return tune(runner, on_event=said, **{"budget": 8, "knobs": VARIED, **more}), said


@every_row(
    ("end", "says"),
    [
        (RehearsalEnd(compared=("files", "keys", "metrics")), "the same files, keys and metrics"),
        (RehearsalEnd(compared=("files",)), "Not compared: weights and values of metrics."),
        (RehearsalEnd(compared=("files", "weights")), "with the same weights but for rounding"),
        (RehearsalEnd(), "was not compared"),
        (RehearsalEnd(not_run="on several hosts"), "was not rehearsed on several hosts"),
    ],
)
def test_what_was_rehearsed_is_said_with_its_limit(end: RehearsalEnd, says: str) -> None:
    result, _ = tuned(Rehearsing(end))
    assert result.best.plan.world_size == 2
    (note,) = [note for note in result.notes if "whole script" in note]
    assert says in note


def test_another_plan_is_recommended_if_the_script_fails_at_its_end(golden: Golden) -> None:
    result, said = tuned(Rehearsing(RehearsalEnd(failed="AttributeError: no save_pretrained")))
    assert result.best.plan.world_size == 1
    assert result.speedup.ratio == pytest.approx(1.25, rel=0.05)
    (out,) = [out for out in result.left_out if out.what == "ranks=2"]
    golden(out.why)
    assert any("no save_pretrained" in text for text in said)


def test_nothing_is_said_if_there_is_nothing_to_rehearse() -> None:
    result, _ = tuned(Rehearsing(None))
    assert result.best.plan.world_size == 2
    assert not any("whole script" in note for note in result.notes)


def test_a_rehearsal_takes_a_part_of_the_time_that_was_given() -> None:
    runner = Rehearsing(RehearsalEnd(compared=("files",)))
    tuned(runner, max_time_seconds=200.0)
    ((_, seconds),) = runner.rehearsals
    assert 0 < seconds < 200


def test_if_no_other_plan_is_left_the_reason_is_said() -> None:
    result, _ = tuned(Rehearsing(RehearsalEnd(failed="it fails")), knobs=["ranks"])
    if result.speedup is None:
        assert "it fails" in str(result.not_compared)
        assert result.best.plan == result.baseline.plan
