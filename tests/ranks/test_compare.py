"""What ranks show, held against a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clean_machine import CLEAN
from golden_texts import Golden
from rows import every_row

from cputune import Plan, Workload
from cputune.inside.messages import RankState
from cputune.plans.workload import Padding
from cputune.ranks.compare import (
    as_shown,
    differences,
    for_people,
    global_batch,
    padding_of,
    runs_alike,
    samples_to_end,
    unseen,
)
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import Infeasible

CCL = Plan(
    processes_per_node=2,
    threads_per_process=2,
    ccl_workers=1,
    backend="ccl",
    cpus=((1, 2), (4, 5)),
    ccl_cpus=((0,), (3,)),
)

ONE = Plan(processes_per_node=1, threads_per_process=2, cpus=((0, 1),))
TWO = Plan(processes_per_node=2, threads_per_process=1, cpus=((0,), (1,)), precision="bf16")
AS_FOUND = Plan(processes_per_node=1, threads_per_process=2, cpus=((0, 1),), as_found=True)


def state(plan: Plan, rank: int = 0, **changed: Any) -> RankState:
    good: RankState = {
        "world_size": plan.world_size,
        "backend": plan.backend if plan.world_size > 1 else None,
        "threads": plan.threads_per_process,
        "affinity": list(plan.cpus[rank]),
        "dtype": {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[plan.precision],
        "allocator": plan.allocator,
        "openmp": "libgomp" if plan.openmp == "default" else plan.openmp,
        "ipex": plan.ipex,
        "mapped": list(plan.preload),
        "environment": plan.environment(),
        "ccl_workers": list(plan.ccl_cpus[rank]) if plan.ccl_cpus else [],
    }
    return {**good, **changed}  # type: ignore[typeddict-item]


def test_threads_that_the_script_sets_are_named_with_their_line(workdir: Path) -> None:
    Path("train.py").write_text('import os\nos.environ["OMP_NUM_THREADS"] = "1"\nimport torch\n')
    seen = [state(ONE, 0, threads=1, samples=8)]
    runner = ProcessRunner(Workload.script(["train.py"]), CLEAN, offline=True)
    with runner, pytest.raises(Infeasible) as caught:
        runner.require_as_planned(ONE, None, seen)  # type: ignore[arg-type]
    words = "(train.py:2 os.environ['OMP_NUM_THREADS'] = '1')"
    assert str(caught.value).endswith(f"1, the plan says 2 {words}")


def test_what_differs_in_every_rank_is_said_once() -> None:
    ranks = [state(TWO, rank, threads=4) for rank in range(2)]
    assert differences(TWO, ranks) == ("threads: 4, the plan says 1",)


def test_a_dtype_that_no_layer_showed_is_not_compared_with_a_plan() -> None:
    assert differences(TWO, [state(TWO, 0, dtype=None), state(TWO, 1)]) == ()


class TestRunsAlike:
    """What ranks told of themselves in another study, held against a plan."""

    @staticmethod
    def told(plan: Plan, **changed: Any) -> list[dict[str, Any]]:
        seen = [for_people(state(plan, r)) for r in range(plan.world_size)]
        return [{**one, **changed} for one in seen]

    def test_as_the_plan_says(self) -> None:
        assert runs_alike(TWO, self.told(TWO))

    def test_not_so(self) -> None:
        assert not runs_alike(TWO, self.told(TWO, dtype=None))


def test_what_a_plan_says_and_no_rank_can_show_is_said_once(golden: Golden) -> None:
    ranks = [state(TWO, rank, dtype=None) for rank in range(2)]
    (words,) = [line for line in unseen(TWO, ranks) if line.startswith("precision")]
    golden(words)
    assert unseen(TWO, [state(TWO, rank, threads=4) for rank in range(2)]) == unseen(
        TWO, [state(TWO, rank) for rank in range(2)]
    )


def said(**fields: Any) -> RankState:
    return fields  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("states", "samples"),
    [
        ([said(batch=8, accumulation=3, samples=5)] * 2, 48),
        ([said(batch=8, accumulation=None, samples=5)] * 2, 10),
        ([said(batch=0, accumulation=3, samples=5), said(samples=7)], 12),
    ],
)
def test_samples_of_a_step(states: list[RankState], samples: int) -> None:
    assert global_batch(states) == samples


def test_samples_to_the_end_of_the_training() -> None:
    other = said(batch=8, accumulation=1)
    first = said(**other, steps_to_end=0, epochs=2.5, dataset_samples=100)
    assert samples_to_end([first, other]) == 250


@pytest.mark.parametrize(
    ("waits", "share"),
    [
        ((0.9, 0.1, 0.2, 0.12), 0.12),  # the first step waits for the workers to start
        ((0.9, 1.4, 1.2), 1.0),
        ((0.9, 0.1), None),
    ],
)
def test_how_long_steps_wait_for_data(waits: tuple[float, ...], share: float | None) -> None:
    job = Workload.script(["train.py"])
    assert as_shown(job, AS_FOUND, [said(samples=8)], None, waits).loading_share == share


def test_whether_padding_may_be_cut() -> None:
    full = {"padding": "full, for it is long"}
    assert padding_of(said(**full)) == Padding(share=0.0, left=1.0, kept="it is long")
    seen = said(padding_share=0.25, columns_left=0.5, padding_mend="collate", **full)
    assert padding_of(seen) == Padding(share=0.25, left=0.5, kept="it is long", mend="collate")


@every_row("plan", [ONE, TWO, AS_FOUND, CCL])
def test_ranks_that_see_the_plan_are_right(plan: Plan) -> None:
    assert differences(plan, [state(plan, r) for r in range(plan.processes_per_node)]) == ()


def test_how_long_a_script_trains_is_learnt_of_its_first_rank() -> None:
    state = said(samples=8, steps_to_end=10, epochs=2)
    seen = as_shown(Workload.script(["train.py"]), AS_FOUND, [state], None, ())
    assert (seen.samples_to_end, seen.epochs) == (80, 2)


def test_what_a_result_keeps_of_a_rank() -> None:
    kept = {"threads": 2, "rank": 1, "peak_bytes": 5, "applied": {"ranks": ["its schedules"]}}
    left = {"environment": {"A": "b"}, "mapped": ["/lib"], "loss": 1.0}
    told = said(affinity=[0, 1, 3], versions={"torch": "2.13.0"}, **kept, **left)
    assert for_people(told) == {"affinity": "0-1,3", "torch": "2.13.0", **kept}
