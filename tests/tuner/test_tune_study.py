"""A whole study, over runners that behave well and badly."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from golden_texts import Golden
from machines import AMX, MACHINES, Machine, machine
from rows import every_row, like_others
from tuner.fakes import BY_NAME, PLANS, SMALL, VARIED, FakeRunner, Script, failing, steady, truthful

import cputune
from cputune import (
    CannotError,
    Interrupted,
    NotMeasurableError,
    NoValidTrialError,
    Plan,
    Result,
    Step,
    UsageError,
)
from cputune.inside.messages import RankState
from cputune.ranks.compare import for_people
from cputune.records.result import COMPLETED, FAILED
from cputune.records.steps import Crashed, Infeasible, OutOfMemory, TimedOut
from cputune.tuner.storage import StudyStorage


def tune(of: Machine, runner: object, **options: object) -> Result:
    options = {"knobs": varied(of), **options}
    return cputune.tune(of.workload, facts=of.facts, runner=runner, **options)


def varied(of: Machine) -> tuple[str, ...] | None:
    """A new knob makes no more plans of the small machine."""
    return VARIED if of is SMALL else None


def fastest(of: Machine) -> Plan:
    space = cputune.search_space(of.facts, of.workload, knobs=varied(of))
    return min(space.plans(), key=of.seconds)


KINDS = ("one-socket", "two-sockets-sub-numa", "eight-sockets", "two-sockets-ipex-ccl")
"""Machines that differ in kind; the others are like these."""
USUAL = [of for of in MACHINES if of.name in KINDS]
OTHERS = [of for of in MACHINES if of.name not in KINDS]


class TestWellBehaved:
    @pytest.mark.parametrize("of", [*USUAL, *like_others(OTHERS)], ids=lambda m: m.name)
    def test_the_recommendation_is_near_the_optimum(self, of: Machine) -> None:
        shares, rivals, best = [], [], of.seconds(fastest(of))
        for seed in range(3):
            result = tune(of, of.runner(seed), seed=seed)
            shares.append(best / of.seconds(result.best.plan))
            rivals.append(best / min(of.seconds(run.plan) for run in result.confirmation))
        assert min(rivals) > 0.95  # the search has found it, whatever can be said of it
        assert sorted(shares)[1] > 0.92

    def test_it_ends_if_no_trial_is_expected_to_be_worth_it(self) -> None:
        of = BY_NAME["one-socket"]
        result = tune(of, of.runner(3), budget=30)
        assert 7 <= len(result.trials) < 20
        assert of.seconds(fastest(of)) / of.seconds(result.best.plan) > 0.96
        assert "none of the others is expected to be faster" in " ".join(result.notes)

    def test_the_same_seed_makes_the_same_proposals(self) -> None:
        of = BY_NAME["two-sockets"]
        first, second = (tune(of, of.runner(1), seed=5, budget=8) for _ in range(2))
        assert [t.plan for t in first.trials] == [t.plan for t in second.trials]

    def test_a_batch_per_rank_is_judged_by_samples(self) -> None:
        def script(plan: Plan, before: int) -> Iterable[Step]:
            # Two ranks take longer for a step, but twice the samples.
            ranks = plan.processes_per_node
            return repeat(Step(seconds=1.0 if ranks == 1 else 1.3, samples=8 * ranks))

        job = cputune.Workload.from_recipe("bert-mini", batch_per_rank=8)
        result = cputune.tune(job, facts=SMALL.facts, runner=FakeRunner(script))
        assert result.best.plan.processes_per_node == 2

    def test_the_batch_of_a_script_is_learnt_from_the_baseline(self) -> None:
        job = cputune.Workload.script(["train.py"])
        of = BY_NAME["one-socket"]
        runner = FakeRunner(lambda plan, before: (Step(of.seconds(plan), 6) for _ in range(99)))
        result = cputune.tune(job, facts=of.facts, runner=runner)
        assert result.workload.global_batch_size == 6
        assert {6 % t.plan.processes_per_node for t in result.trials} == {0}


class TestTodaysLaunch:
    """It is what its ranks show: a script may ask for bf16 itself."""

    class FakeObserved(FakeRunner):
        def observed(self) -> tuple[dict[str, object], ...]:
            own = {"dtype": "bfloat16", "threads": 2, "affinity": "0-1"}
            return (own,) if self.started[-1].as_found else ({},)

    def test_its_precision_is_the_one_that_was_seen(self) -> None:
        result = tune(SMALL, self.FakeObserved(truthful()), budget=4)
        assert result.baseline.plan.as_found
        assert result.baseline.plan.precision == "bf16"
        assert result.trials[0].plan == result.baseline.plan

    def test_what_is_not_varied_stays_as_it_is_today(self) -> None:
        runner = self.FakeObserved(truthful())
        result = tune(SMALL, runner, budget=6, knobs=["threads"])
        assert {trial.plan.precision for trial in result.trials} == {"bf16"}
        assert len(result.trials) > 1

    @pytest.mark.parametrize(
        "words",
        [
            "1 × 2 threads, fp32",
            "1 × 2 threads, bf16",
            "1 × 1 thread, fp32",
            "2 × 1 thread, bf16, gloo",
            "1 × 2 threads, fp32, tcmalloc",
            "1 × 2 threads, bf16, libiomp5",
        ],
    )
    def test_what_is_typed_otherwise_and_runs_as_a_plan_is_that_plan(self, words: str) -> None:
        facts = machine(cores_per_socket=2, isa=AMX, libraries=("tcmalloc", "libiomp5"))
        knobs = ["ranks", "threads", "precision", "allocator", "openmp"]
        plans = list(cputune.search_space(facts, SMALL.workload, knobs=knobs).plans())
        (same,) = (plan for plan in plans if plan.describe() == words)

        class FakeShowing(FakeRunner):
            def observed(self) -> tuple[dict[str, Any], ...]:
                if not self.started[-1].as_found:
                    return ({},)
                return tuple(for_people(shown_by(same, rank)) for rank in range(same.world_size))

        runner = FakeShowing(lambda plan, before: steady(1.0))
        asked = {"facts": facts, "budget": len(plans), "knobs": knobs}
        result = cputune.tune(SMALL.workload, runner=runner, **asked)
        assert same not in runner.started
        assert any("your current launch, so" in note for note in result.notes)
        assert len(set(runner.started)) > 2


def shown_by(plan: Plan, rank: int) -> RankState:
    """What a rank tells that runs as this plan says, whatever was typed."""
    return {
        "world_size": plan.world_size,
        "backend": plan.backend if plan.world_size > 1 else None,
        "threads": plan.threads_per_process,
        "affinity": list(plan.cpus[rank]),
        "dtype": {"fp32": "float32", "bf16": "bfloat16"}[plan.precision],
        "allocator": plan.allocator,
        "openmp": "libgomp" if plan.openmp == "default" else plan.openmp,
        "ipex": False,
        "preload": list(plan.preload),
        "mapped": list(plan.preload),
        "environment": plan.environment(),
    }


class TestFailures:
    @every_row(
        ("error", "kind", "words"),
        [
            (Infeasible("threads: 1, the plan says 2"), "infeasible", "the plan says 2"),
            (Crashed("rank 1 died", details="Segmentation fault"), "crashed", "Segmentation"),
            (OutOfMemory("killed"), "out of memory", "killed"),
            (TimedOut("no step"), "timed out", "no step"),
            (GeneratorExit(), "crashed", "GeneratorExit"),
        ],
    )
    @every_row("after", [0, 1])
    def test_of_a_plan_are_reported_and_the_study_goes_on(
        self, error: BaseException, kind: str, words: str, after: int
    ) -> None:
        result = tune(SMALL, FakeRunner(failing(error, after=after)))
        failed = [t for t in result.trials if t.state == FAILED]
        assert failed
        assert all(t.kind == kind and words in str(t.reason) for t in failed)
        assert all(t.plan.precision == "bf16" for t in failed)
        assert result.best.plan.precision == "fp32"

    def test_without_one_valid_trial_there_is_no_result(self, golden: Golden) -> None:
        def script(plan: Plan, before: int) -> Iterable[Step]:
            raise Crashed("not today" if plan.as_found else f"not with {plan.precision}")

        with pytest.raises(NoValidTrialError, match=f"{len(PLANS) + 1} crashed") as caught:
            tune(SMALL, FakeRunner(script))
        assert caught.value.exit_code == 4
        golden(str(caught.value.hint))

    def test_what_fails_alike_twice_is_not_tried_again(self) -> None:
        def script(plan: Plan, before: int) -> Iterable[Step]:
            raise Crashed(f"died as process {id(plan)}", details="NameError: x")

        runner = FakeRunner(script)
        with pytest.raises(NoValidTrialError, match="died as process") as caught:
            tune(SMALL, runner)
        assert len(runner.started) == 2
        assert caught.value.details == "NameError: x"

    def test_if_todays_launch_does_not_run_another_takes_its_place(self) -> None:
        def script(plan: Plan, before: int) -> Iterable[Step]:
            if plan.as_found:
                raise OutOfMemory("killed")
            return steady(SMALL.seconds(plan))

        result = tune(SMALL, FakeRunner(script))
        assert result.trials[0].kind == "out of memory"
        assert not result.baseline.plan.as_found
        assert "Your current launch does not run" in " ".join(result.notes)


def test_a_loss_that_is_not_the_baselines_fails_the_trial() -> None:
    def script(plan: Plan, before: int) -> Iterable[Step]:
        return steady(SMALL.seconds(plan), loss=9.0 if plan.precision == "bf16" else 5.0)

    result = tune(SMALL, FakeRunner(script))
    failed = [t for t in result.trials if t.state == FAILED]
    assert {(t.kind, t.plan.precision) for t in failed} == {("diverged", "bf16")}
    assert all("that of the baseline 5" in str(t.reason) for t in failed)
    assert result.best.plan.precision == "fp32"


class TestNeighbours:
    def test_of_a_machine_that_is_never_quiet_nothing_is_claimed(
        self, tmp_path: Path, golden: Golden
    ) -> None:
        def busy(plan: Plan, before: int) -> Iterable[Step]:
            return steady(2 * SMALL.seconds(plan), delayed=0.9 * SMALL.seconds(plan))

        book = tmp_path / "study.db"
        with golden.raises(NotMeasurableError) as caught:
            tune(SMALL, FakeRunner(busy), study=book)
        assert caught.value.exit_code == 4
        assert "--resume" in str(caught.value.hint)
        provisional = caught.value.result  # type: ignore[attr-defined]
        assert provisional.disturbed
        assert "nothing can be said of which plan" in " ".join(provisional.notes)

        shared = tune(SMALL, FakeRunner(busy), share_machine=True)
        assert shared.disturbed
        assert "nothing can be said of which plan" in " ".join(shared.notes)

        result = tune(SMALL, FakeRunner(truthful()), study=book, resume=True)
        assert result.best.plan == fastest(SMALL)
        assert not any(trial.delayed_steps for trial in result.trials)


def test_no_number_is_given_twice_if_a_disturbed_trial_is_run_again(tmp_path: Path) -> None:
    def disturbed(plan: Plan, before: int) -> Iterable[Step]:
        return steady(0.1, delayed=0.09 if len(set(runner.started)) == 2 else 0.0)

    runner = FakeRunner(disturbed)
    book: dict[str, Any] = {"facts": SMALL.facts, "study": tmp_path / "s.db"}
    cputune.tune(SMALL.workload, runner=runner, budget=4, **book)
    quiet = FakeRunner(truthful())
    result = cputune.tune(SMALL.workload, runner=quiet, budget=5, resume=True, **book)
    assert [trial.number for trial in result.trials] == [0, 2, 3, 4, 5]


class TestInterrupt:
    @staticmethod
    def interrupting(after: int) -> Script:
        left = [after]

        def script(plan: Plan, before: int) -> Iterable[Step]:
            for step in steady(SMALL.seconds(plan)):
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt
                yield step

        return script

    @pytest.mark.parametrize(
        "after", [1, 15, *(pytest.param(n, marks=pytest.mark.matrix) for n in (8, 20))]
    )
    def test_at_any_step_leaves_a_study_to_go_on_with(self, after: int, tmp_path: Path) -> None:
        study = tmp_path / "study.db"
        with pytest.raises(Interrupted) as caught:
            tune(SMALL, FakeRunner(self.interrupting(after)), study=study)
        assert caught.value.exit_code == 130
        found = caught.value.result
        whole = tune(SMALL, FakeRunner(truthful()), study=study, resume=True)
        undisturbed = tune(SMALL, FakeRunner(truthful()))
        assert [t.plan for t in whole.trials] == [t.plan for t in undisturbed.trials]
        assert whole.best.plan == fastest(SMALL)
        assert (found is None) is (after == 1)
        if found is not None:
            first = whole.trials[: len(found.trials)]
            assert [t.plan for t in found.trials] == [t.plan for t in first]

    def test_while_all_is_put_away_loses_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def closed(self: StudyStorage) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(StudyStorage, "close", closed)
        with pytest.raises(Interrupted) as caught:
            tune(SMALL, FakeRunner(truthful()))
        found = caught.value.result
        assert found.best.plan == fastest(SMALL)
        assert "runs of its confirmation" in " ".join(found.notes)

    def test_a_finished_study_is_not_run_again(self, tmp_path: Path) -> None:
        tune(SMALL, FakeRunner(truthful()), study=tmp_path / "s.db")
        runner = FakeRunner(truthful())
        result = tune(SMALL, runner, study=tmp_path / "s.db", resume=True)
        assert len(result.trials) == 7
        assert len(runner.started) <= 3 * result.speedup.pairs, "only the confirmation was run"

    def test_an_interrupted_study_is_not_overwritten_a_finished_one_is(
        self, tmp_path: Path, golden: Golden
    ) -> None:
        study = tmp_path / "s.db"
        with pytest.raises(Interrupted):
            tune(SMALL, FakeRunner(self.interrupting(15)), study=study)
        with golden.raises(CannotError):
            tune(SMALL, FakeRunner(truthful()), study=study)
        tune(SMALL, FakeRunner(truthful()), study=study, resume=True)
        again = tune(SMALL, FakeRunner(truthful()), study=study, budget=2)
        assert len(again.trials) == 2


@every_row(
    ("named", "value"),
    [
        *(("budget", budget) for budget in (0, -1, 2.5, True, "20")),
        ("time", {"max_time_seconds": 0}),
        ("resume", {"resume": True}),  # without a study
    ],
)
def test_limits_that_cannot_be_kept_are_refused(named: str, value: object) -> None:
    options = value if isinstance(value, dict) else {named: value}
    with pytest.raises(UsageError, match=named):
        tune(SMALL, FakeRunner(truthful()), **options)


def test_a_job_that_always_ends_in_its_warm_up_is_measured_all_the_same(golden: Golden) -> None:
    def script(plan: Plan, before: int) -> Iterable[Step]:
        seconds = SMALL.seconds(plan)
        return [Step(seconds * factor, 8) for factor in (2.0, 1.5, 1.0)]

    result = tune(SMALL, FakeRunner(script))
    assert result.trials[0].state == COMPLETED
    golden(result.trials[0].reason)
    assert result.best.plan.precision == "bf16"
