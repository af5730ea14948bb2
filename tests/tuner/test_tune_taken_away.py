"""CPUs that are taken away in the middle are named, and nothing that ran since is believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tuner.fakes import FakeRunner, study, truthful

from cputune import NotMeasurableError, Result, TuneOptions
from cputune.host import LiveHost
from cputune.host.probing.limits import watch_cpus

GONE = "CPU 1 was taken away during the measurement: 0-1 could be used at first, 0 now"


class FakeLosing(FakeRunner):
    """A CPU is gone from the trial on that has this number; -1: never."""

    at = -1

    @property
    def gone(self) -> str | None:
        return GONE if len(self.started) > self.at > -1 else None


def tuned(runner: FakeLosing, **options: Any) -> Result:
    return study(runner, TuneOptions(**options), taken_away=lambda: runner.gone)


def test_the_trial_in_which_it_happened_is_not_believed_and_run_again(tmp_path: Path) -> None:
    book = {"study": str(tmp_path / "s.db"), "budget": 4}
    runner = FakeLosing(truthful())
    runner.at = 2
    with pytest.raises(NotMeasurableError, match=GONE) as ended:
        tuned(runner, **book)
    found = ended.value.result
    assert len(found.trials) == 2
    assert found.speedup is None
    assert found.not_compared == GONE
    assert "--resume" in str(ended.value.hint)
    again = FakeLosing(truthful())
    result = tuned(again, resume=True, **book)
    assert len(result.trials) == 4
    assert runner.started[2] in again.started


def test_no_ratio_holds_of_a_confirmation_in_which_it_happened() -> None:
    quiet = FakeLosing(truthful())
    assert tuned(quiet, budget=3).speedup is not None
    runner = FakeLosing(truthful())
    runner.at = len(quiet.started) - 1  # in its last run
    with pytest.raises(NotMeasurableError, match=GONE) as ended:
        tuned(runner, budget=3)
    found = ended.value.result
    assert found.speedup is None
    assert found.best.plan.as_found


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ((0, 1, 2), "CPU 3 was taken away {while_measuring}, 0-2 now"),
        ((1,), "CPUs 0,2-3 were taken away {while_measuring}, 1 now"),
    ],
)
def test_what_is_gone_is_reported_by_its_numbers(
    now: tuple[int, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LiveHost, "affinity", lambda self: (0, 1, 2, 3))
    look = watch_cpus(LiveHost())
    assert look() is None
    monkeypatch.setattr(LiveHost, "affinity", lambda self: now)
    while_measuring = "during the measurement: 0-3 could be used at first"
    assert look() == said.format(while_measuring=while_measuring)


@pytest.mark.parametrize(
    ("first", "now", "said"),
    [
        (None, None, None),
        (2.0, 2.0, None),
        (2.0, None, None),
        (2.0, 4.0, None),
        (None, 1.5, "a CPU quota of 1.5 was set during the measurement"),
        (2.0, 1.0, "the CPU quota was lowered during the measurement, from 2 to 1"),
    ],
)
def test_a_quota_that_is_lowered_is_reported(
    first: float | None, now: float | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cputune.host.probing.limits._own_quota", lambda host: first)
    look = watch_cpus(LiveHost())
    monkeypatch.setattr("cputune.host.probing.limits._own_quota", lambda host: now)
    assert look() == said
