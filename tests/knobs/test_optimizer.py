"""Fused AdamW: offered where it is not what the script has anyway, and seen in the rank."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from golden_texts import Golden
from machines import machine

import cputune
from cputune import HostFacts, Plan, UsageError, Workload
from cputune.host.facts import Package
from cputune.plans.delivery.applied_command import applied_command
from cputune.plans.knobs import knob_named
from cputune.plans.knobs.kernels import optimizer_of
from cputune.ranks.runner import ProcessRunner

JOB = Workload.from_recipe("bert-mini")
KNOB = knob_named("optimizer")
CPUS = sorted(os.sched_getaffinity(0))
PLAN = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
FUSED = PLAN.with_setting("optimizer", "adamw_torch_fused")


def with_stack(torch: str | None = "2.7.1", transformers: str | None = "4.53.3") -> HostFacts:
    versions = {"torch": torch, "transformers": transformers, "accelerate": "1.8.0"}
    packages = (
        Package(name=name, version=version, location=None)
        for name, version in versions.items()
        if version is not None
    )
    return machine(cores_per_socket=2, packages=tuple(packages))


def values_of(facts: HostFacts, job: Workload = JOB, **fix: str) -> set[object]:
    space = cputune.search_space(facts, job, fix=fix)
    return set(next(knob.values for knob in space.knobs if knob.name == "optimizer"))


def why(facts: HostFacts, job: Workload = JOB) -> str:
    left_out = cputune.search_space(facts, job).left_out
    return next(out.why for out in left_out if out.what == "optimizer=adamw_torch_fused")


@pytest.mark.parametrize(
    ("torch", "transformers", "reason"),
    [
        ("2.13.0", "5.23.0", "the default of transformers 5.23.0 with torch 2.13.0 already"),
        ("2.8.0", "4.55.4", "already"),
        ("2.3.1", "4.53.3", "has no --optim adamw_torch_fused that steps on a CPU"),
        ("2.7.1", "4.26.1", "has no --optim adamw_torch_fused"),
        ("2.7.1", None, "not known"),
        (None, "4.53.3", "not known"),
    ],
)
def test_is_left_out_with_the_reason(
    torch: str | None, transformers: str | None, reason: str
) -> None:
    facts = with_stack(torch, transformers)
    assert values_of(facts) == {"default"}
    assert reason in why(facts)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (Workload.script(["t.py", "--optim", "adafactor"]), "sets --optim adafactor itself"),
        (Workload.script(["t.py", "--optim=adamw_torch_fused"]), "itself"),
        (replace(Workload.script(["t.py"]), framework="accelerate"), "not known before it has run"),
        (replace(Workload.script(["t.py"]), optimizer="SGD, foreach"), "steps with SGD, foreach"),
        (replace(Workload.script(["t.py"]), optimizer="AdamW, fused"), "steps with AdamW, fused"),
    ],
)
def test_the_choice_of_a_script_stays(job: Workload, reason: str) -> None:
    assert values_of(with_stack(), job) == {"default"}
    assert reason in why(with_stack(), job)


def test_a_script_that_asks_for_adamw_as_a_loop_is_offered_the_fused_one() -> None:
    job = Workload.script(["t.py", "--optim", "adamw_torch"])
    assert values_of(with_stack(), job) == {"default", "adamw_torch_fused"}


@pytest.mark.parametrize("framework", ["trainer", "accelerate"])
def test_a_script_that_was_seen_to_step_in_a_loop_is_offered_the_fused_one(framework: str) -> None:
    job = replace(Workload.script(["t.py"]), parses_arguments=False, optimizer="AdamW as a loop")
    job = replace(job, framework=framework)
    assert values_of(with_stack("2.13.0", "5.23.0"), job) == {"default", "adamw_torch_fused"}


def test_a_value_that_is_asked_for_is_honoured_where_it_is_possible(golden: Golden) -> None:
    today = with_stack("2.13.0", "5.23.0")
    assert values_of(today, optimizer="adamw_torch") == {"adamw_torch"}
    assert values_of(today, optimizer="adamw_torch_fused") == {"adamw_torch_fused"}
    with pytest.raises(UsageError, match="optimizer=adamw_torch_fused") as caught:
        values_of(with_stack("2.3.1"), optimizer="adamw_torch_fused")
    golden(str(caught.value.hint))


def test_ipex_steps_by_itself() -> None:
    assert KNOB.put is not None
    assert KNOB.put(replace(PLAN, ipex=True), "adamw_torch_fused", with_stack()) is None


def test_it_stands_in_the_plan_its_words_its_flags_and_its_file() -> None:
    assert FUSED.describe() == "1 × 1 threads, fp32, adamw_torch_fused"
    flags = applied_command(JOB, FUSED, {"transformers": "4.53.3", "torch": "2.7.1"}).flags
    assert flags[-4:-2] == ("--optim", "adamw_torch_fused")
    assert "--optim" not in applied_command(JOB, PLAN, {}).flags
    assert FUSED.with_setting("optimizer", "default") == PLAN


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ({"class": "AdamW", "fused": True, "foreach": False}, "AdamW, fused"),
        ({"class": "AdamW", "fused": False, "foreach": False}, "AdamW as a loop"),
        ({"class": "SGD", "fused": False, "foreach": True}, "SGD, foreach"),
    ],
)
def test_a_rank_shows_it(shown: dict[str, object], words: str) -> None:
    (optimizer,) = KNOB.shown
    assert optimizer.seen(FUSED, {"optimizer": shown}) == words
    assert optimizer.expected(FUSED, 0) == "AdamW, fused"
    assert optimizer.expected(PLAN, 0) is None, "a script's own optimizer is not judged"


@pytest.mark.torch
def test_real_ranks_step_as_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = Path(__file__).parent.parent / "faults" / "trainer_script.py"
    job = Workload.script([str(script), "--output_dir", "out", "--use_cpu"])
    with ProcessRunner(job, cputune.probe()) as runner:
        for value, seen in (
            ("adamw_torch", "AdamW as a loop"),
            ("adamw_torch_fused", "AdamW, fused"),
        ):
            plan = PLAN.with_setting("optimizer", value)
            with closing(runner.steps(plan)) as steps:
                assert len(list(islice(steps, 2))) == 2
            (state,) = runner.observed()
            assert KNOB.shown[0].seen(plan, state) == seen == KNOB.shown[0].expected(plan, 0)


@pytest.mark.torch
@pytest.mark.matrix
def test_the_loop_of_an_accelerate_script_is_fused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = Path(__file__).parent.parent / "faults" / "accelerate_script.py"
    with ProcessRunner(Workload.script([str(script), "--cpu"]), cputune.probe()) as runner:
        for plan, seen in (
            (replace(PLAN, as_found=True), "AdamW as a loop"),
            (FUSED, "AdamW, fused"),
        ):
            with closing(runner.steps(plan)) as steps:
                assert len(list(islice(steps, 2))) == 2
            assert optimizer_of(runner.observed()[0]) == seen
        assert runner.workload.optimizer == "AdamW as a loop"
