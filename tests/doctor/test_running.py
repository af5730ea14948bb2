"""``doctor --pid``: a job that runs, read from /proc; real processes wait for real things."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from clean_machine import CLEAN, changed
from golden_texts import Golden
from hosts.builder import machine

from cputune import CannotError, Finding, Severity
from cputune.doctor import running_job
from cputune.doctor.running_job import judge_job
from cputune.host import LiveHost, process_tree

LIBRARIES = """\
7f00-7f01 r-xp 0 00:00 1    /venv/torch/lib/libtorch_cpu.so
7f00-7f01 r-xp 0 00:00 1    /venv/torch/lib/libgomp.so.1
7f02-7f03 r-xp 0 00:00 1    /opt/libiomp5.so
7f04-7f05 r-xp 0 00:00 1    /usr/lib/libtcmalloc.so.4
"""
STAT = "{pid} (python a) b) {state} 1 1 1 0 0 0 0 0 0 0 {ticks} 0 0 0"


@pytest.fixture(autouse=True)
def _no_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "SAMPLE_SECONDS", 0.01)


def process(pid: int, *, children: str = "", states: str = "S", **said: Any) -> dict[str, str]:
    """The files of a process: a thread for each letter of ``states``."""
    variables = said.get("variables", {})
    files = {
        f"/proc/{pid}/environ": "\0".join(f"{name}={text}" for name, text in variables.items()),
        f"/proc/{pid}/status": f"Name:\tpython\nPPid:\t{said.get('parent', 1)}\n"
        f"Cpus_allowed_list:\t{said.get('cpus', '0-27')}\nSigCgt:\t0000000000000200\n",
        f"/proc/{pid}/maps": said.get("maps", LIBRARIES),
        f"/proc/{pid}/numa_maps": said.get("memory", "7f00 default anon=4 N0=4 N1=1"),
    }
    for number, state in enumerate(states):
        task = f"/proc/{pid}/task/{pid + number}"
        files[f"{task}/stat"] = STAT.format(pid=pid + number, state=state, ticks=7)
        files[f"{task}/children"] = children if number == 0 else ""
        files[f"{task}/wchan"] = said.get("waits_in", "futex_wait_queue")
    return files


def judged(pid: int, *parts: dict[str, str]) -> dict[str, list[Finding]]:
    files = {name: text for part in parts for name, text in part.items()}
    found: dict[str, list[Finding]] = {}
    for finding in judge_job(pid, changed(CLEAN), machine(None, files=files)):
        found.setdefault(finding.code, []).append(finding)
    return found


def test_what_a_rank_has_is_read() -> None:
    files = process(70, variables={"RANK": "1", "OMP_NUM_THREADS": "8"}, states="RRS")
    (each,) = process_tree.look_at_job(machine(None, files=files), 70)
    assert (each.rank, each.torch, len(each.threads), each.cpus[-1]) == ("1", True, 3, 27)
    assert [path.rpartition("/")[2] for path in each.openmp] == ["libiomp5.so", "libgomp.so.1"]
    assert each.memory_bytes == {0: 16384, 1: 4096}
    assert each.catches == {10}
    assert not each.waits


def test_memory_on_the_node_of_other_cpus(golden: Golden) -> None:
    found = judged(70, process(70, states="R", memory="7f00 anon=4 N0=1000 N1=9000"))
    (finding,) = found["job-memory-remote"]
    golden(finding.evidence)
    assert "job-waits" not in found


def test_variables_of_the_job_are_judged_not_those_of_the_shell(golden: Golden) -> None:
    variables = {"OMP_NUM_THREADS": "64", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "8"}
    found = judged(70, process(70, variables=variables, states="R", cpus="0-3"))
    golden(found["threads-affinity"][0].evidence)
    assert found["training-changed"][0].severity is Severity.WARNING


def test_the_quota_is_that_of_the_cgroup_of_the_job() -> None:
    files = process(70, states="RR") | {
        "/proc/70/cgroup": "0::/job\n",
        "/proc/self/cgroup": "0::/\n",
        "/proc/self/mountinfo": "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "/sys/fs/cgroup/job/cpu.max": "10000 100000\n",
        "/sys/fs/cgroup/job/cpu.stat": "nr_periods 1000\nnr_throttled 900\n",
    }
    found = judged(70, files)
    assert "the quota is 0.1 CPUs" in found["quota-throttled"][0].evidence


@pytest.mark.parametrize(
    ("waits_in", "said"),
    [
        ("futex_wait_queue", "it waits for another of its threads"),
        ("hrtimer_nanosleep", "it sleeps"),
        ("inet_csk_accept", "it waits for another process"),
    ],
)
def test_what_the_kernel_shows_of_a_job_that_waits(waits_in: str, said: str) -> None:
    (finding,) = judged(70, process(70, waits_in=waits_in))["job-waits"]
    assert said in finding.evidence
    assert "kill -USR1 70" in finding.remedy  # it handles that signal


def test_a_process_that_is_stopped_is_let_go_on() -> None:
    (finding,) = judged(70, process(70, states="TTT"))["job-waits"]
    assert "it is stopped" in finding.evidence
    assert finding.remedy == "Let it go on: kill -CONT 70"


ALL_REDUCE = ("all_reduce (torch/distributed/distributed_c10d.py:2700)", "step (train.py:9)")
BROADCAST = (
    "broadcast (torch/distributed/distributed_c10d.py:2600)",
    "broadcast_object_list (torch/distributed/distributed_c10d.py:3300)",
    "save (train.py:30)",
)


@pytest.mark.parametrize(
    ("stacks", "evidence"),
    [
        (
            {80: ALL_REDUCE, 90: BROADCAST},
            "rank 0 (process 80) is in all_reduce, rank 1 (process 90) is in broadcast_object_list",
        ),
        ({80: ALL_REDUCE, 90: ALL_REDUCE}, None),
        ({80: ALL_REDUCE, 90: ("forward (train.py:3)",)}, None),
    ],
)
def test_ranks_in_different_collectives(
    monkeypatch: pytest.MonkeyPatch, stacks: dict[int, tuple[str, ...]], evidence: str | None
) -> None:
    monkeypatch.setattr(running_job, "python_stack", lambda _, each: (stacks[each.pid], ""))
    ranks = [process(pid, parent=70, variables={"RANK": str(pid // 10 - 8)}) for pid in (80, 90)]
    found = judged(70, process(70, children="80 90"), *ranks)
    assert [one.evidence for one in found.get("job-collectives", [])] == [evidence] * bool(evidence)


def test_a_parent_that_polls_a_pool_that_hangs() -> None:
    def thread(share: float) -> process_tree.Thread:
        return process_tree.Thread(id=1, name="python", share=share, waits_in="futex_wait_queue")

    def wait(share: float, of_child: float) -> running_job.Wait | None:
        argv = ("python", "train.py")
        parent = process_tree.Running(
            pid=70, parent=1, name="python", argv=argv, threads=(thread(share),)
        )
        child = process_tree.Running(
            pid=80, parent=70, name="python", argv=argv, threads=(thread(of_child),)
        )
        return running_job.wait_of(parent, [child], machine(None))

    polling = wait(0.1, 0.0)
    assert "forked" in polling.cause
    assert wait(0.9, 0.0) is None, "it computes"
    assert wait(0.1, 0.9) is None, "its child computes"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def waiting() -> Iterator[int]:
    code = "print('ready', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", code], **pipes)
    child.stdout.readline()
    while _state(child.pid) == "R":
        time.sleep(0.05)
    yield child.pid
    child.communicate(b"\n", timeout=30)


def test_a_real_process_that_waits(waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "SAMPLE_SECONDS", 1.0)
    codes = {finding.code for finding in judge_job(waiting, CLEAN, LiveHost())}
    assert codes >= {"job-seen", "job-waits"}


HANGS = """
import faulthandler, multiprocessing, signal, sys
faulthandler.register(signal.SIGUSR1, file=open(sys.argv[1], "w"))
import torch
torch.set_num_threads(2)
a = torch.randn(900, 900); a @ a
def work(n): return float((a @ a).sum())
print("ready", flush=True)
with multiprocessing.get_context("fork").Pool(2) as pool: pool.map(work, range(2))
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(util.find_spec("torch") is None, reason="torch is not installed")
def test_a_pool_that_was_forked_after_openmp_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, "SAMPLE_SECONDS", 1.0)
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    words = [sys.executable, str(script), str(tmp_path / "stacks")]
    environment = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
    child = subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, start_new_session=True)
    try:
        child.stdout.readline()
        found: list[Finding] = []
        until = time.monotonic() + 60
        while not found and time.monotonic() < until:
            time.sleep(1)
            judged = judge_job(child.pid, CLEAN, LiveHost())
            found = [one for one in judged if one.code == "job-waits"]
        assert "its pool was forked after OpenMP threads had started" in found[0].evidence
        assert "work (" in found[0].evidence
        assert "hangs.py:7" in found[0].evidence
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate(timeout=30)


def test_the_precision_that_a_job_asks_for() -> None:
    files = process(70, states="R") | {
        "/proc/70/cmdline": "python\0train.py\0--bf16\0--output_dir\0out\0"
    }
    assert judged(70, files)["job-seen"][0].evidence.endswith("asks for bf16 by --bf16")


def test_a_number_that_no_process_has(golden: Golden) -> None:
    with golden.raises(CannotError) as caught:
        judge_job(5, CLEAN, machine(None))
    assert caught.value.hint
