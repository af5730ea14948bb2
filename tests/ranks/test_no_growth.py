"""Many trials in one runner, and hours of a study: neither grows with them."""

from __future__ import annotations

import os
import tempfile
from itertools import islice
from pathlib import Path

import endurance
import psutil
import pytest
from faults.parents import LIGHT

import cputune
from cputune import Plan, Workload
from cputune.ranks.runner import ProcessRunner

pytestmark = pytest.mark.slow

CPUS = sorted(os.sched_getaffinity(0))
ONE = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
TWO = Plan(processes_per_node=2, threads_per_process=1, cpus=((CPUS[0],), (CPUS[-1],)))

MOST_BYTES = 48 << 20
"""Of memory, for what stays of forty trials and what the allocator keeps; a trial takes 50 kB. In a
process that other tests have filled the allocator was seen to keep 32 MiB more.
"""


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_no_process_thread_descriptor_or_file_stays_of_a_trial(
    tmp_path: Path, fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    job = Workload.script(LIGHT)
    before = of_this_process(tmp_path)
    with ProcessRunner(job, cputune.probe(), fresh=fresh) as runner:
        seen = []
        for number in range(12):
            steps = runner.steps((ONE, TWO)[number % 2])
            assert len(list(islice(steps, 3))) == 3
            steps.close()  # type: ignore[attr-defined]
            seen.append(of_this_process(tmp_path))
    assert set(seen[2:]) == {seen[1]}
    assert of_this_process(tmp_path) == before


def of_this_process(folder: Path) -> tuple[int, int, int, int]:
    """Its descriptors, threads and descendants, and the files below a folder."""
    me = psutil.Process()
    files = sum(1 for _ in folder.rglob("*"))
    return me.num_fds(), me.num_threads(), len(me.children(recursive=True)), files


def test_a_study_of_minutes_holds_no_more_at_its_end(tmp_path: Path) -> None:
    held: list[endurance.Held] = []
    endurance.endure(tmp_path / "s.db", 4000.0, 60.0, held.append)
    first, last = held[1], held[-1]
    assert last.trials >= first.trials + 10
    assert (last.descriptors, last.threads) == (first.descriptors, first.threads)
    assert last.memory_bytes - first.memory_bytes < MOST_BYTES
