"""A plan: what it may say, and the variables that its ranks are started with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from golden_texts import Golden
from hypothesis import given, strategies as st
from rows import every_row

from cputune import Plan
from cputune.plans.knobs.libraries import JEMALLOC_SETTINGS
from cputune.plans.values import ALLOCATORS, BACKENDS, OPENMP_RUNTIMES, PRECISIONS
from cputune.text.documents import record_of


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "processes_per_node": 2,
        "threads_per_process": 2,
        "cpus": ((0, 1), (2, 3)),
    }
    return Plan(**{**values, **changes})


plans = st.builds(
    plan,
    nodes=st.integers(1, 4),
    threads_per_process=st.integers(1, 200),
    ccl_workers=st.integers(0, 4),
    backend=st.sampled_from(BACKENDS),
    precision=st.sampled_from(PRECISIONS),
    ipex=st.booleans(),
    allocator=st.sampled_from(ALLOCATORS),
    openmp=st.sampled_from(OPENMP_RUNTIMES),
    preload=st.lists(st.text(min_size=1), max_size=2).map(tuple),
    as_found=st.booleans(),
)


@given(plans)
def test_a_plan_reads_back_equal(one: Plan) -> None:
    assert record_of(Plan, json.loads(json.dumps(one.to_json()))) == one


@given(plans)
def test_variables_are_text_and_the_baseline_sets_none(one: Plan) -> None:
    variables = one.environment()
    assert all(isinstance(value, str) and value for value in variables.values())
    assert bool(variables) is not one.as_found


@every_row(
    ("changes", "variables"),
    [
        ({}, {"OMP_NUM_THREADS": "2", "ACCELERATE_USE_CPU": "true"}),
        ({"precision": "bf16"}, {"ACCELERATE_MIXED_PRECISION": "bf16"}),
        ({"ipex": True}, {"ACCELERATE_USE_IPEX": "true"}),
        ({"preload": ("/a.so", "/b.so")}, {"LD_PRELOAD": "/a.so:/b.so"}),
        ({"allocator": "jemalloc"}, {"MALLOC_CONF": JEMALLOC_SETTINGS}),
        ({"openmp": "libiomp5"}, {"KMP_BLOCKTIME": "1"}),
        (
            {"backend": "ccl", "ccl_workers": 1, "ccl_cpus": ((4,), (5,))},
            {"CCL_WORKER_COUNT": "1", "CCL_WORKER_AFFINITY": "4,5"},
        ),
    ],
)
def test_variables_of_a_rank(changes: dict[str, Any], variables: dict[str, str]) -> None:
    assert variables.items() <= plan(**changes).environment().items()


def test_no_variable_of_oneccl_without_it() -> None:
    assert not any(name.startswith("CCL") for name in plan(ccl_workers=2).environment())


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


@pytest.mark.parametrize(("threads", "over"), [(1, False), (2, False), (3, True)])
def test_more_threads_than_cpus_is_oversubscribed(threads: int, over: bool) -> None:
    assert plan(threads_per_process=threads).oversubscribed is over


def test_a_plan_in_words(golden: Golden) -> None:
    one = plan(nodes=2, precision="bf16", allocator="tcmalloc", ipex=True)
    golden(one.describe())
    assert one.world_size == 4


def test_its_short_name_and_how_that_is_read(golden: Golden) -> None:
    two = plan(backend="ccl", ccl_workers=1, ccl_cpus=((0,), (2,)))
    assert two.short() == "2×2 fp32 ccl"
    golden(two.legend())
    one = plan(processes_per_node=1, cpus=((0, 1),), as_found=True)
    assert one.short() == "1×2 fp32 (today)"
    assert one.legend() == "1×2 means 1 rank with 2 threads"
