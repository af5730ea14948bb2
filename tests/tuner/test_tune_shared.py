"""One study for several tuners, in a database: SQLite here, PostgreSQL in tests/consumers/."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from tuner.fakes import PLANS, SMALL
from tuner.sharing import MACHINE, said, start, succeed, until

import cputune
from cputune.plan import Plan
from cputune.result import Result, Throughput, Trial
from cputune.tuner import database, shared
from cputune.tuner.reading import Run
from cputune.tuner.sampler import History, PlanSampler
from cputune.tuner.shared import SharedStorage
from cputune.tuner.storage import LostDatabase

SPACE = cputune.search_space(SMALL.facts, SMALL.workload)


def measured(folder: Path) -> list[str]:
    """The plans that were measured, but for today's launch, by number."""
    return [plan for _, _, plan in said(folder, "ends") if plan != "today"]


@pytest.mark.slow
class TestTwoProcesses:
    def test_measure_no_plan_twice_and_learn_from_each_other(self, tmp_path: Path) -> None:
        address = f"sqlite:///{tmp_path}/shared.db"
        with (
            start(tmp_path, address, "slow", together=2, speed=1.0) as slow,
            start(tmp_path, address, "fast", together=2, speed=1.5) as fast,
        ):
            succeed(slow)
            succeed(fast)
        assert len(measured(tmp_path)) == 11  # of a budget of 12, in which one launch of today is
        assert len(set(measured(tmp_path))) == 11
        for name, speed in (("slow", 1.0), ("fast", 1.5)):
            result = Result.load(tmp_path / f"{name}.json")
            assert len(result.trials) == 12
            assert sum(trial.elsewhere for trial in result.trials) == 11 - len(
                [line for line in said(tmp_path, name, "ends") if line[2] != "today"]
            )
            for trial in result.trials:  # those of the other one too are as fast as they were here
                if trial.samples_per_second is not None and trial.state == "completed":
                    here = 8 * speed / MACHINE.seconds(trial.plan)
                    assert trial.samples_per_second.median == pytest.approx(here, rel=0.01)

    def test_what_a_killed_one_was_measuring_is_measured_by_the_other(self, tmp_path: Path) -> None:
        address = f"sqlite:///{tmp_path}/shared.db"
        with start(tmp_path, address, "victim", 2) as victim:
            until(lambda: said(tmp_path, "victim", "stuck"))
            lost = said(tmp_path, "victim", "stuck")[0][2]
            with start(tmp_path, address, "other", grace=3) as other:
                until(lambda: len(said(tmp_path, "other", "ends")) > 2)
                victim.send_signal(signal.SIGKILL)
                succeed(other)
        assert ["other", "ends", lost] in said(tmp_path, "ends")
        assert len(set(measured(tmp_path))) == len(measured(tmp_path)) == 11


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shared.db"


@pytest.fixture
def two(address: str) -> Iterator[tuple[SharedStorage, SharedStorage]]:
    """Two tuners of one study with a budget of four."""
    both = [ledger(address) for _ in range(2)]
    yield both[0], both[1]
    for one in both:
        one.close()


def ledger(address: str, name: str = "study") -> SharedStorage:
    found = SharedStorage(
        address, name, budget=4, private=False, say=lambda text: None, out_of_time=lambda: False
    )
    found.guide(PlanSampler(SPACE, History(), seed=0))
    return found


Two = tuple[SharedStorage, SharedStorage]


class TestClaims:
    def test_a_plan_is_had_by_one_until_it_lets_go(self, two: Two) -> None:
        one, other = two
        assert one.begin(SPACE, PLANS[0]) == PLANS[0]
        assert other.begin(SPACE, PLANS[0]) is None
        other.news()
        assert other.claimed == {PLANS[0]}
        one.abandon()
        assert other.begin(SPACE, PLANS[0]) == PLANS[0]

    def test_the_budget_is_that_of_all(self, two: Two) -> None:
        one, other = two
        third = [one, other, one]
        begun = [tuner.begin(SPACE, plan) for tuner, plan in zip(third, PLANS, strict=False)]
        assert begun == PLANS[:3]  # and a launch of today makes four
        assert other.begin(SPACE, PLANS[3]) is None

    def test_another_study_has_claims_of_its_own(self, address: str, two: Two) -> None:
        assert two[0].begin(SPACE, PLANS[0]) == PLANS[0]
        third = ledger(address, "another")
        assert third.begin(SPACE, PLANS[0]) == PLANS[0]
        third.close()


def measured_here(tuner: SharedStorage, plan: Plan, *, number: int = 1) -> None:
    """End the trial that runs, with its plan's true speed."""
    seconds = SMALL.seconds(plan)
    rate = Throughput(median=1 / seconds, low=1 / seconds, high=1 / seconds)
    tuner.end(
        Trial(number=number, plan=plan, state="completed", samples_per_second=rate),
        Run(logs=[math.log(seconds)] * 3),
    )


def test_what_another_measured_is_scaled_by_both_launches_of_today(two: Two) -> None:
    one, other = two
    for tuner, speed in ((one, 10.0), (other, 5.0)):
        tuner.begin_baseline()
        rate = Throughput(median=speed, low=speed, high=speed)
        found = replace(PLANS[0], as_found=True)
        baseline = Trial(number=0, plan=found, state="completed", samples_per_second=rate)
        tuner.end(baseline, Run(logs=[-math.log(speed)]))
    one.begin(SPACE, PLANS[1])
    measured_here(one, PLANS[1])
    (told,) = other.news()
    there = 1 / SMALL.seconds(PLANS[1])
    assert told.trial.samples_per_second is not None
    assert told.trial.samples_per_second.median == pytest.approx(there / 2)
    assert told.run.logs == pytest.approx([math.log(2 / there)] * 3)
    assert told.error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("plans", "words"),
    [(1, "waiting for a trial that another tuner runs"), (2, "waiting for 2 other trials")],
)
def test_what_is_waited_for_is_told_once(
    two: Two, plans: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, said = two[0], []
    monkeypatch.setattr(shared.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(one, "_say", said.append)
    one.claimed = set(PLANS[:plans])
    one.wait()
    one.wait()
    assert said == [f"{words}: nothing else is left to measure"]


class TestTheDead:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database, "BEAT_SECONDS", 1)
        monkeypatch.setattr(database, "BEAT_SECONDS", 1)
        monkeypatch.setattr(database, "GRACE_SECONDS", 1)
        monkeypatch.setattr(shared, "GRACE_SECONDS", 1)

    def nobody_claims(self, tuner: SharedStorage) -> bool:
        tuner.news()
        return not tuner.claimed

    def test_a_silent_trial_is_free_after_its_grace(self, two: Two) -> None:
        one, other = two
        one.begin(SPACE, PLANS[0])
        one._heart.stop()
        until(lambda: self.nobody_claims(other))
        assert other.begin(SPACE, PLANS[0]) == PLANS[0]

    def test_a_trial_that_runs_is_not_silent(
        self, two: Two, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, _ = two
        beats: list[int] = []
        monkeypatch.setattr(one._storage, "record_heartbeat", beats.append)
        one.begin(SPACE, PLANS[0])
        until(lambda: len(beats) > 2)
        one.abandon()
        count = len(beats)
        one._heart.stop()
        assert len(beats) <= count + 1
        assert len(set(beats)) == 1

    def test_one_that_died_before_its_first_beat_is_free_too(
        self, two: Two, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = two
        monkeypatch.setattr(one._heart, "begin", lambda trial: None)
        one.begin(SPACE, PLANS[0])
        until(lambda: self.nobody_claims(other))


class TestTakenForDead:
    """A tuner that was stopped for a while, and goes on."""

    def freed(self, one: SharedStorage) -> None:
        assert one._running is not None
        one._storage.set_trial_state_values(one._running, TrialState.FAIL)

    def test_what_it_has_measured_is_on_record_all_the_same(self, two: Two) -> None:
        one, other = two
        one.begin(SPACE, PLANS[0])
        self.freed(one)
        measured_here(one, PLANS[0])
        (heard,) = other.news()
        assert heard.trial.plan == PLANS[0]
        assert heard.trial.elsewhere
        assert other.news() == []

    def test_unless_another_has_its_plan_by_now(self, two: Two) -> None:
        one, other = two
        one.begin(SPACE, PLANS[0])
        self.freed(one)
        assert other.begin(SPACE, PLANS[0]) == PLANS[0]
        measured_here(one, PLANS[0])
        measured_here(other, PLANS[0])
        assert len(one.news()) == 1
        assert other.news() == []


class TestAServerThatIsAway:
    def away(self, *asked: object) -> object:
        raise StorageInternalError("the server is away")

    def test_what_was_measured_meanwhile_is_written_when_it_answers(
        self, two: Two, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = two
        one.begin(SPACE, PLANS[0])
        with monkeypatch.context() as patch:
            patch.setattr(one._storage, "set_trial_user_attr", self.away)
            measured_here(one, PLANS[0])
        assert other.news() == []
        one.news()
        (heard,) = other.news()
        assert heard.trial.plan == PLANS[0]

    def test_is_not_waited_for_for_ever(self, two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
        one, _ = two
        monkeypatch.setattr(database, "PATIENCE_SECONDS", 0)
        with monkeypatch.context() as patch:
            patch.setattr(one._storage, "create_new_trial", self.away)
            with pytest.raises(LostDatabase, match="does not answer") as caught:
                one.begin(SPACE, PLANS[0])
        assert "the same command" in str(caught.value.hint)
        assert one.begin(SPACE, PLANS[0]) == PLANS[0]
