"""A job in the foreground: what is started, and what the terminal says to it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

import cputune
from cputune.facts import HostFacts
from cputune.layout import baseline_plan
from cputune.plan import Plan
from cputune.ranks import commands, foreground
from cputune.ranks.messages import RankCommand
from cputune.workload import Workload

RANK_SCRIPT = Path("rank.py")


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    return cputune.probe()


def test_mpirun_starts_the_ranks_of_oneccl_as_in_emitted_files(
    facts: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Sequence[str]] = []

    def mpi_ranks(plan: Plan, command: Sequence[str], *_: Any, **__: Any) -> list[RankCommand]:
        seen.append(command)
        return []

    monkeypatch.setattr(commands, "mpi_ranks", mpi_ranks)
    plan = Plan(
        processes_per_node=2,
        threads_per_process=1,
        cpus=((0,), (1,)),
        backend="ccl",
        ccl_workers=1,
        ccl_cpus=((2,), (3,)),
    )
    job = Workload.script(["train.py", "--lr", "1"], global_batch_size=8)
    assert foreground.run(job, plan, facts, rank_script=RANK_SCRIPT) == 0
    ((python, rank, *options, carry, force, script, _, _),) = seen
    assert (python, rank, script) == (sys.executable, "rank.py", "train.py")
    assert options == ["--launcher", "mpi", "--cpus", "0/1", "--"]
    assert carry.endswith("carry.py")
    assert '"world_size": 2' in force


def test_a_plan_as_found_is_the_launch_that_was_typed(
    facts: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Became(Exception):  # noqa: N818
        pass

    def become(command: RankCommand) -> NoReturn:
        raise Became(" ".join(command["argv"]))

    monkeypatch.setattr(foreground, "become", become)
    typed = "torchrun --nproc-per-node 2 train.py"
    with pytest.raises(Became, match=typed):
        foreground.run(
            Workload.script(typed.split()), baseline_plan(facts), facts, rank_script=RANK_SCRIPT
        )


SCRIPT = """
import os, signal, sys, time
told = 0
def count(*_):
    global told
    told += 1
signal.signal(signal.SIGINT, count)
os.write(1, b"ready\\n")
while not told:
    time.sleep(0.05)
time.sleep(0.5)
os.write(1, b"told %d\\n" % told)
time.sleep(2)  # the first that ends with 5 has the others told once more
sys.exit(5)
"""
START = """
import os, sys
from cputune.ranks.foreground import supervise
from cputune.ranks.messages import command
rank = command([sys.executable, "train.py"], os.environ)
sys.exit(supervise([rank, rank]))
"""


def test_the_terminal_tells_each_rank_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(cputune.__file__).parent.parent))
    pid, terminal = os.forkpty()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", START])
    written = b""
    try:
        while written.count(b"ready") < 2:
            written += os.read(terminal, 1024)
        os.write(terminal, b"\x03")
        while written.count(b"told") < 2:
            written += os.read(terminal, 1024)
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert re.findall(rb"told (\d+)", written) == [b"1", b"1"]
    assert os.waitstatus_to_exitcode(status) == 5
