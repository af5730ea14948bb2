"""How a rank takes its samples: fewer and larger batches of a step, and who prepares them."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from golden_texts import Golden
from machines import TODAY, machine

import cputune
from cputune import Plan, UsageError, Workload
from cputune.plans.delivery.applied_command import applied_command
from cputune.plans.equivalence import Deviation, ModelAnswers
from cputune.plans.knobs import knob_named
from cputune.ranks.runner import ProcessRunner

FACTS = machine(cores_per_socket=2, packages=TODAY)
SCRIPT = Workload.script(["t.py"])
SEEN = SCRIPT.observed(
    framework="trainer", global_batch_size=32, parses_arguments=True, accumulation=4
)
WAITS = replace(SEEN, loading_share=0.2)
FAULTS = Path(__file__).parent.parent / "faults"
CPUS = sorted(os.sched_getaffinity(0))
PLAN = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
AT_ONCE = PLAN.with_setting("accumulation", 1)
LOADER = PLAN.with_setting("workers", 1)


def asked(question: str, why: str) -> ModelAnswers:
    """What a script has answered to one question: it does not train the same."""
    return ModelAnswers(answers=(Deviation(question=question, point="at the first step", why=why),))


def values_of(name: str, job: Workload, **fix: object) -> set[object]:
    space = cputune.search_space(FACTS, job, fix=fix)
    return set(next(knob.values for knob in space.knobs if knob.name == name))


def test_a_script_that_accumulates_is_offered_all_at_once() -> None:
    assert values_of("accumulation", SEEN) == {"default", 1}
    typed = Workload.script(["t.py", "--gradient_accumulation_steps", "8"])
    assert values_of("accumulation", typed) == {"default", 1}


def test_a_step_that_waits_for_its_data_is_offered_one_loader_and_two() -> None:
    assert values_of("workers", WAITS) == {"default", 1, 2}


@pytest.mark.parametrize(
    ("name", "job", "reason"),
    [
        ("accumulation", Workload.from_recipe("bert-mini"), "does not accumulate"),
        ("accumulation", replace(SEEN, accumulation=1), "does not accumulate"),
        ("accumulation", SCRIPT, "not known before it has run"),
        ("accumulation", replace(SEEN, framework="accelerate"), "own loop decides"),
        ("accumulation", replace(SEEN, batch_per_rank=4), "--batch-per-rank fixes"),
        ("workers", SEEN, "not known before it has run"),
        ("workers", replace(SEEN, loading_share=0.012), "waits for its data 1.2 % of its time"),
        ("workers", replace(WAITS, argv=("t.py", "--dataloader_num_workers", "4")), "script sets"),
        ("workers", replace(WAITS, framework="accelerate"), "creates its data loader itself"),
        ("workers", replace(WAITS, licence=asked("workers", "it asks the model")), "asks the mod"),
        ("workers", replace(WAITS, licence=asked("samples", "it counts")), "it counts"),
    ],
)
def test_is_left_out_with_the_reason(name: str, job: Workload, reason: str) -> None:
    assert values_of(name, job) == {"default"}
    left_out = cputune.search_space(FACTS, job).left_out
    assert reason in next(out.why for out in left_out if out.what == name)


def test_a_number_that_is_asked_for_is_honoured_where_it_divides_the_batch(golden: Golden) -> None:
    recipe = Workload.from_recipe("bert-mini")
    assert values_of("accumulation", recipe, accumulation=2) == {2}
    assert values_of("workers", SEEN, workers=3) == {3}
    with pytest.raises(UsageError, match="workers=3"):
        values_of("workers", replace(SEEN, licence=asked("weights", "it asks")), workers=3)
    with pytest.raises(UsageError, match="accumulation=3") as caught:
        values_of("accumulation", SEEN, accumulation=3)
    golden(str(caught.value.hint))


def test_flags_carry_them() -> None:
    assert flags_of(PLAN)[-2:] == ("--per_device_train_batch_size", "8")
    assert "--gradient_accumulation_steps" not in flags_of(PLAN)
    at_once = ("--per_device_train_batch_size", "32", "--gradient_accumulation_steps", "1")
    assert flags_of(AT_ONCE)[-4:] == at_once
    two = replace(AT_ONCE, processes_per_node=2, cpus=((0,), (1,)))
    assert flags_of(two)[-3] == "16"
    assert "--dataloader_num_workers" in flags_of(LOADER)
    assert "--dataloader_num_workers" not in flags_of(PLAN)


def flags_of(plan: Plan) -> tuple[str, ...]:
    return applied_command(SEEN, plan, {}).flags


def test_code_carries_them() -> None:
    both = AT_ONCE.with_setting("workers", 1)
    force = applied_command(replace(SEEN, parses_arguments=False), both, {}).force
    assert force is not None
    assert force.batch(8, 4) == (32, 1)
    assert force.arguments["dataloader_num_workers"] == 1


@pytest.mark.parametrize(
    ("plan", "words", "state", "seen"),
    [
        (AT_ONCE, "not accumulated", {"accumulation": 4}, 4),
        (PLAN.with_setting("accumulation", 4), "accumulated 4 times", {"accumulation": 4}, 4),
        (LOADER, "1 loader", {"loader_workers": 0}, 0),
    ],
)
def test_it_stands_in_the_words_of_the_plan_and_a_rank_shows_it(
    plan: Plan, words: str, state: dict[str, int], seen: int
) -> None:
    assert plan.describe() == f"1 × 1 threads, fp32, {words}"
    ((name, value),) = plan.settings.items()
    (shown,) = knob_named(name).shown
    assert (shown.expected(plan, 0), shown.seen(plan, state)) == (value, seen)
    assert shown.expected(PLAN, 0) is None


@pytest.mark.torch
@pytest.mark.matrix
def test_real_ranks_take_the_same_samples_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--output_dir", "out", "--use_cpu", "--per_device_train_batch_size", "2"]
    job = Workload.script(
        [str(FAULTS / "trainer_script.py"), *words, "--gradient_accumulation_steps", "4"]
    )
    with ProcessRunner(job, cputune.probe()) as runner:
        for plan, batch in ((replace(PLAN, as_found=True), (2, 4)), (AT_ONCE, (8, 1))):
            with closing(runner.steps(plan)) as steps:
                assert [step.samples for step in islice(steps, 2)] == [8, 8]
            (state,) = runner.observed()
            assert (state["batch"], state["accumulation"]) == batch


SLOW_DATA = """
import sys, time
sys.path.insert(0, {faults!r})
from tiny import Data, model
from transformers import HfArgumentParser, Trainer, TrainingArguments

class Slow(Data):
    def __getitem__(self, index):
        time.sleep(0.03)
        return super().__getitem__(index)

(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(model=model(), args=arguments, train_dataset=Slow(64)).train()
"""


@pytest.mark.torch
@pytest.mark.matrix
def test_a_script_with_slow_data_is_seen_to_wait_and_its_workers_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slow.py").write_text(SLOW_DATA.format(faults=str(FAULTS)), encoding="utf-8")
    job = Workload.script(["slow.py", "--output_dir", "out", "--use_cpu"])
    with ProcessRunner(job, cputune.probe()) as runner:
        for plan, workers in ((replace(PLAN, as_found=True), 0), (LOADER, 1)):
            with closing(runner.steps(plan)) as steps:
                assert len(list(islice(steps, 5))) == 5
            (state,) = runner.observed()
            assert state["loader_workers"] == workers
        assert runner.workload.loading_share is not None
        assert runner.workload.loading_share > 0.03
        assert values_of("workers", runner.workload) == {"default", 1, 2}
