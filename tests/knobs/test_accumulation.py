"""Fewer and larger batches of the same step: where a script accumulates, and carried either way."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from machines import TODAY, machine

import cputune
from cputune.carrier.command import batch_flags, carried
from cputune.errors import UsageError
from cputune.knobs import knob_named
from cputune.plan import Plan
from cputune.ranks.runner import ProcessRunner
from cputune.workload import Workload

FACTS = machine(cores_per_socket=2, packages=TODAY)
SCRIPT = Workload.script(["t.py"])
SEEN = SCRIPT.observed(
    framework="trainer", global_batch_size=32, parses_arguments=True, accumulation=4
)
CPUS = sorted(os.sched_getaffinity(0))
PLAN = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
AT_ONCE = PLAN.with_setting("accumulation", 1)


def values_of(job: Workload, **fix: object) -> set[object]:
    space = cputune.search_space(FACTS, job, fix=fix)
    return set(next(knob.values for knob in space.knobs if knob.name == "accumulation"))


def why(job: Workload) -> str:
    left_out = cputune.search_space(FACTS, job).left_out
    return next(out.why for out in left_out if out.what == "accumulation")


def test_a_script_that_accumulates_is_offered_all_at_once() -> None:
    assert values_of(SEEN) == {"default", 1}
    assert values_of(Workload.script(["t.py", "--gradient_accumulation_steps", "8"])) == {
        "default",
        1,
    }


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (Workload.from_recipe("bert-mini"), "takes its batch at once"),
        (replace(SEEN, accumulation=1), "takes its batch at once"),
        (SCRIPT, "not known before it has run"),
        (replace(SEEN, framework="accelerate"), "in a loop of its own"),
        (replace(SEEN, batch_per_rank=4), "--batch-per-rank says"),
    ],
)
def test_is_left_out_with_the_reason(job: Workload, reason: str) -> None:
    assert values_of(job) == {"default"}
    assert reason in why(job)


def test_a_number_that_is_asked_for_is_honoured_where_it_divides_the_batch() -> None:
    assert values_of(Workload.from_recipe("bert-mini"), accumulation=2) == {2}
    with pytest.raises(UsageError, match="accumulation=3") as caught:
        values_of(SEEN, accumulation=3)
    assert "cannot be cut into 3" in str(caught.value.hint)


def test_flags_carry_it() -> None:
    assert batch_flags(SEEN, PLAN) == ("--per_device_train_batch_size", "8")
    assert batch_flags(SEEN, AT_ONCE) == (
        *("--per_device_train_batch_size", "32"),
        *("--gradient_accumulation_steps", "1"),
    )
    two = replace(AT_ONCE, processes_per_node=2, cpus=((0,), (1,)))
    assert batch_flags(SEEN, two)[1] == "16"


def test_code_carries_it() -> None:
    force = carried(replace(SEEN, parses_arguments=False), AT_ONCE, {}).force
    assert force is not None
    assert force.batch(8, 4) == (32, 1)


def test_it_stands_in_the_words_of_the_plan_and_a_rank_shows_it() -> None:
    assert AT_ONCE.describe() == "1 × 1 threads, fp32, not accumulated"
    assert PLAN.with_setting("accumulation", 4).describe().endswith("accumulated 4 times")
    (shown,) = knob_named("accumulation").shown
    assert (shown.expected(AT_ONCE, 0), shown.seen(AT_ONCE, {"accumulation": 4})) == (1, 4)
    assert shown.expected(PLAN, 0) is None


@pytest.mark.torch
@pytest.mark.matrix
def test_real_ranks_take_the_same_samples_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = Path(__file__).parent.parent / "faults" / "trainer_script.py"
    words = ["--output_dir", "out", "--use_cpu", "--per_device_train_batch_size", "2"]
    job = Workload.script([str(script), *words, "--gradient_accumulation_steps", "4"])
    with ProcessRunner(job, cputune.probe()) as runner:
        for plan, batch in ((replace(PLAN, as_found=True), (2, 4)), (AT_ONCE, (8, 1))):
            with closing(runner.steps(plan)) as steps:
                assert [step.samples for step in islice(steps, 2)] == [8, 8]
            (state,) = runner.observed()
            assert (state["batch"], state["accumulation"]) == batch
