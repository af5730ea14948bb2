"""``max_time_seconds`` is a promise: no more than one step later all is over, whatever took it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest
from golden_texts import Golden
from machines import AVX512, TODAY, Model, machine, simulated
from rows import every_row
from starting import tuned
from tuner import fakes
from tuner.fakes import SMALL, FakeRunner, Heard, alike, steady

import cputune
from cputune import NoValidTrialError, Plan, Result, Step, StudyStarted, TuneOptions
from cputune.plans.equivalence import UNCHECKED, ModelAnswers
from cputune.records.options import DEFAULT_LIMIT_SECONDS
from cputune.records.result import COMPLETED, PRUNED
from cputune.records.steps import TimedOut, TimeUp


@dataclass
class FakeClock:
    """Seconds that pass when they are spent."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeSlowStart(FakeRunner):
    """Spends ``startup`` seconds of the clock before the first step, and the steps' own too.

    It waits no longer than there is time for.
    """

    def __init__(self, clock: FakeClock, startup: Callable[[Plan], float], step: float) -> None:
        super().__init__(lambda plan, before: steady(step))
        self.clock, self.startup, self.step = clock, startup, step
        self.left: Callable[[], float] = lambda: math.inf

    def keep_to(self, seconds_left: Callable[[], float]) -> None:
        self.left = seconds_left

    def steps(self, plan: Plan) -> Iterator[Step]:
        waited = min(self.startup(plan), max(0.0, self.left()))
        self.clock.now += waited
        if waited < self.startup(plan):
            raise TimeUp("while importing torch")
        for step in super().steps(plan):
            self.clock.now += step.seconds
            yield step


class Ended(NamedTuple):
    result: Result | None
    error: NoValidTrialError | None
    seconds: float
    limits: list[float | None]
    messages: list[str]


def study(
    seconds: float | None,
    startup: float | Callable[[Plan], float],
    step: float,
    *,
    kind: type[FakeSlowStart] = FakeSlowStart,
    kept: Path | None = None,
    resume: bool = False,
) -> Ended:
    """A study of ``seconds`` whose clock nothing but its runner moves."""
    clock = FakeClock()
    begin = clock.now
    of = startup if callable(startup) else lambda plan: startup
    runner = kind(clock, of, step)
    limits: list[float | None] = []
    messages = Heard()
    result = error = None

    def on_event(event: object) -> None:
        if isinstance(event, StudyStarted):
            limits.append(event.most_seconds)
        messages(event)

    options = TuneOptions(max_time_seconds=seconds, study=kept, resume=resume)
    more = {"on_event": on_event, "clock": clock, "started": begin, "limited": True}
    try:
        result = fakes.study(runner, options, **more)
    except NoValidTrialError as ended:
        error = ended
    assert runner.closed == len(runner.started)
    return Ended(result, error, clock.now - begin, limits, messages)


@every_row("seconds", [5.0, 20.0, 21.0, 25.0, 30.0, 44.0, 60.0, 90.0, 200.0])
@every_row("step", [0.3, 4.0])
def test_it_is_over_one_step_later_at_most(seconds: float, step: float) -> None:
    ended = study(seconds, startup=20.0, step=step)
    assert ended.seconds <= seconds + step
    assert (ended.result is None) is (ended.error is not None)


def test_without_a_time_it_takes_six_minutes_at_most() -> None:
    assert study(None, startup=1.0, step=0.3).seconds <= DEFAULT_LIMIT_SECONDS
    slow = study(None, startup=60.0, step=1.0)
    assert slow.result is not None
    assert 300.0 < slow.seconds <= DEFAULT_LIMIT_SECONDS + 1
    assert any("--max-time 20m tries 12" in text for text in slow.messages)
    endless = study(math.inf, startup=60.0, step=1.0)
    assert endless.seconds > DEFAULT_LIMIT_SECONDS
    assert (slow.limits, endless.limits) == ([DEFAULT_LIMIT_SECONDS], [None])


def test_a_later_trial_that_is_cut_short_is_reported_with_what_is_known() -> None:
    result = study(120.0, startup=lambda plan: 1.0 if plan.as_found else 108.0, step=0.5).result
    assert [trial.state for trial in result.trials] == [COMPLETED, PRUNED]
    last = result.trials[-1]
    assert last.cut_short
    assert last.samples_per_second is not None
    assert "Trial 1 (" in " ".join(result.notes)
    assert "was cut short after" in " ".join(result.notes)


def test_of_an_import_that_takes_long(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    modules = workdir / "modules"
    modules.mkdir()
    (modules / "torch.py").write_text("import time\ntime.sleep(300)\n")
    (workdir / "train.py").write_text("import torch\n")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", f"{modules}:{':'.join(sys.path)}")
    facts, job = cputune.probe(), cputune.Workload.script(["train.py"])
    with pytest.raises(NoValidTrialError) as ended:
        cputune.tune(job, facts=facts, max_time_seconds=3, share_machine=True)
    golden(str(ended.value))


@pytest.mark.parametrize("seconds", [6.0, 12.0, 20.0, 30.0, 60.0])
def test_in_a_short_time_equal_plans_have_no_gain(seconds: float) -> None:
    for seed in range(12):
        runner = alike(seed, 0.3, wander=0.1, run_noise=0.01)
        with suppress(NoValidTrialError):
            assert fakes.tune(runner, max_time_seconds=seconds).best.plan.as_found


class FakeAsking(FakeSlowStart):
    """Notes what its model is asked, which takes as long as a start."""

    workload = SMALL.workload
    data = None
    asked: ClassVar[list[tuple[str, ...]]] = []

    def check_model(self, questions: Sequence[str] = ("ranks",)) -> None:
        self.asked.append(tuple(questions))
        self.workload = replace(
            self.workload, model_answers=ModelAnswers() if questions else UNCHECKED
        )
        if questions:
            self.clock.now += 5.0


@pytest.mark.parametrize(("seconds", "asked"), [(30.0, ()), (120.0, ("ranks",))])
def test_a_short_time_is_for_the_comparison_and_no_question(
    seconds: float, asked: tuple[str, ...]
) -> None:
    FakeAsking.asked.clear()
    study(seconds, startup=5.0, step=0.3, kind=FakeAsking)
    assert FakeAsking.asked == [asked]


def test_what_was_not_asked_is_asked_when_there_is_more_time(tmp_path: Path) -> None:
    FakeAsking.asked.clear()
    kept = tmp_path / "kept.db"
    for seconds, resume in ((30.0, False), (120.0, True), (200.0, True)):
        ended = study(seconds, startup=5.0, step=0.3, kind=FakeAsking, kept=kept, resume=resume)
        assert ended.result is not None
    assert FakeAsking.asked == [(), ("ranks",)]
    assert ended.result.workload.model_answers == ModelAnswers()


def test_a_slow_launch_is_compared_with_what_the_topology_suggests() -> None:
    """There is time for few trials, and the guide's plan has no faster allocator."""
    facts = machine(cores_per_socket=2, isa=AVX512, libraries=("tcmalloc",), packages=TODAY)
    slow = simulated("slow", facts, Model(work=20.0, bandwidth=4.0), batch=32)
    result = tuned(slow.runner(1), slow.workload, facts, budget=20, seed=1)
    assert [trial.origin for trial in result.trials][:2] == ["baseline", "topology"]
    compared = {run.plan for run in result.confirmation} - {result.baseline.plan}
    assert {plan.allocator for plan in compared} == {"tcmalloc"}


class FakeHangingOnce(FakeSlowStart):
    """The first plan after the baseline makes two steps, and no third one within a minute."""

    def steps(self, plan: Plan) -> Iterator[Step]:
        hangs = len(self.started) == 1
        with closing(super().steps(plan)) as steps:
            for number, step in enumerate(steps):
                if hangs and number == 2:
                    self.clock.now += 60.0
                    raise TimedOut("no step for 60 s after 2 steps")
                yield step


def test_a_hang_in_a_step_is_no_slow_start() -> None:
    result = study(None, 5.0, 0.01, kind=FakeHangingOnce).result
    assert result.trials[1].kind == TimedOut.kind
    assert len(result.trials) > 3
    assert result.not_compared is None
