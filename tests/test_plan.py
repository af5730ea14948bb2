"""A plan: what it may say, and the variables that its ranks are started with."""

from __future__ import annotations

from typing import Any

import pytest
from golden_texts import Golden
from rows import every_row

from cputune import Plan
from cputune.text.documents import record_of


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "processes_per_node": 2,
        "threads_per_process": 2,
        "cpus": ((0, 1), (2, 3)),
    }
    return Plan(**{**values, **changes})


@pytest.mark.parametrize(("threads", "over"), [(1, False), (2, False), (3, True)])
def test_more_threads_than_cpus_is_oversubscribed(threads: int, over: bool) -> None:
    assert plan(threads_per_process=threads).oversubscribed is over


def test_its_short_name_and_how_that_is_read(golden: Golden) -> None:
    two = plan(backend="ccl", ccl_workers=1, ccl_cpus=((0,), (2,)))
    assert two.short() == "2×2 fp32 ccl"
    golden(two.legend())
    one = plan(processes_per_node=1, cpus=((0, 1),), as_found=True)
    assert one.short() == "1×2 fp32 (baseline)"
    assert one.legend() == "1×2 means 1 rank with 2 threads"


@every_row(
    "changes",
    [
        {"nodes": 0},
        {"processes_per_node": 0},
        {"threads_per_process": 0},
        {"cpus": ((0,),)},
        {"ccl_cpus": ((4,),)},
        {"precision": "fp8"},
        {"backend": "nccl"},
        {"allocator": "mimalloc"},
        {"openmp": "libomp"},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"plan|unknown"):
        plan(**changes)
    with pytest.raises(ValueError):
        record_of(Plan, {**plan().to_json(), **changes})
