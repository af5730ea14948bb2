"""What glibc's malloc does with freed memory: its own variables, seen in the rank's memory."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

import pytest
from in_process import ran
from machines import machine

import cputune
from cputune import HostFacts, Plan, Workload
from cputune.plans.delivery.environment import LOADED_ONCE, is_cleared

JOB = replace(Workload.from_recipe("bert-mini"), mapped_blocks=40)
PLAN = Plan(processes_per_node=1, threads_per_process=1, cpus=((0,),))
KEPT, HUGE = (PLAN.with_setting("malloc", value) for value in ("kept", "huge_pages"))


def with_pages(pages: str | None) -> HostFacts:
    facts = machine(cores_per_socket=2, libraries=("tcmalloc",))
    return replace(facts, settings=replace(facts.settings, transparent_huge_pages=pages))


def plans_of(facts: HostFacts) -> set[tuple[str, object]]:
    space = cputune.search_space(facts, JOB, knobs=["allocator", "malloc"])
    return {(plan.allocator, plan.setting("malloc")) for plan in space.plans()}


@pytest.mark.parametrize("pages", ["madvise", "always"])
def test_lives_beside_the_malloc_of_glibc_alone(pages: str) -> None:
    glibc = {("default", value) for value in ("default", "kept", "huge_pages")}
    assert plans_of(with_pages(pages)) == {*glibc, ("tcmalloc", "default")}


@pytest.mark.parametrize(
    ("blocks", "values"),
    [(None, {"default"}), (0, {"default"}), (40, {"default", "kept", "huge_pages"})],
)
def test_is_varied_if_the_launch_of_today_gives_memory_back(
    blocks: int | None, values: set[str]
) -> None:
    space = cputune.search_space(with_pages("madvise"), replace(JOB, mapped_blocks=blocks))
    assert {plan.setting("malloc") for plan in space.plans()} == values


def test_its_variables_are_read_as_a_process_starts_and_others_are_cleared() -> None:
    assert set(HUGE.environment()) - set(PLAN.environment()) <= {*LOADED_ONCE}
    assert all(map(is_cleared, HUGE.environment().keys() - PLAN.environment().keys()))
    assert is_cleared("MALLOC_ARENA_MAX")


LOOK = """
import json
from cputune.inside import state
kept = [bytearray(1 << 22) for _ in range(8)]
print(json.dumps([state.mapped_blocks(), state.huge_pages_bytes()]))
"""


def test_a_process_with_these_variables_maps_no_block_by_itself() -> None:
    def look(plan: Plan) -> list[int | None]:
        environment = {k: v for k, v in os.environ.items() if not is_cleared(k)}
        done = ran(
            [sys.executable, "-c", LOOK], env={**environment, **plan.environment()}, check=True
        )
        told: list[int | None] = json.loads(done.stdout)
        return told

    mapped, _ = look(PLAN)
    if mapped is None:
        pytest.skip("this libc has no mallinfo2")
    assert mapped >= 8
    assert look(KEPT)[0] == 0
