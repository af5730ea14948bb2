"""What glibc's malloc does with freed memory: its own variables, seen in the rank's memory."""

from __future__ import annotations

import json
import os
import sys

import pytest
from in_process import ran

from cputune import Plan
from cputune.plans.delivery.environment import is_cleared

PLAN = Plan(processes_per_node=1, threads_per_process=1, cpus=((0,),))
KEPT = PLAN.with_setting("malloc", "kept")


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
