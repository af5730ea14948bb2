"""What a launch without carry.py would lack, in numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cputune.carrier.command import lost_without_force
from cputune.plan import Plan
from cputune.workload import Workload

SCRIPT = Workload.script(["train.py"])
ONE = Plan(processes_per_node=1, threads_per_process=1, cpus=((0,),))
TWO = replace(ONE, processes_per_node=2, cpus=((0,), (1,)))


def lost(plan: Plan, job: Workload = SCRIPT, today: Plan | None = ONE) -> list[str]:
    return list(lost_without_force(job, plan, today))


def test_a_plan_that_is_todays_lacks_nothing() -> None:
    assert lost(ONE) == []
    assert lost(replace(ONE, backend="ccl")) == [], "one rank speaks with nobody"


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (SCRIPT, ["global batch: 2 times the script's own, which each of 2 ranks takes"]),
        (
            Workload.script(["train.py"], global_batch_size=8),
            ["global batch: 2 × 8 = 16 samples in place of 8"],
        ),
        (
            Workload.script(["train.py", "--per_device_train_batch_size", "4"]),
            ["global batch: 2 × 4 = 8 samples in place of 4"],
        ),
        (
            Workload.script(
                ["train.py", "--per_device_train_batch_size", "4"], global_batch_size=8
            ),
            ["global batch: 2 × 8 = 16 samples in place of 8"],
        ),
        (
            Workload.script(["train.py", "--per_device_train_batch_size", "many"]),
            ["global batch: 2 times the script's own, which each of 2 ranks takes"],
        ),
        (Workload.script(["train.py"], batch_per_rank=4), []),
    ],
)
def test_the_global_batch_grows_with_the_ranks(job: Workload, said: list[str]) -> None:
    assert lost(TWO, job) == said


def test_a_precision_is_lost_that_is_not_todays() -> None:
    bf16 = replace(ONE, precision="bf16")
    assert lost(bf16) == ["precision: fp32 in place of bf16"]
    assert lost(bf16, today=bf16) == []
    assert lost(ONE, today=None) == ["precision: its own, which is not known in place of fp32"]


def test_a_backend_and_all_that_is_an_argument_is_lost() -> None:
    plan = replace(TWO, backend="ccl", ipex=True)
    assert lost(plan)[1:] == [
        "backend: gloo in place of ccl",
        "use_ipex: not set, in place of True",
    ]
