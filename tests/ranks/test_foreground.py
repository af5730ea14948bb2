"""A job in the foreground: what is started, and what the terminal says to it."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import cputune
from cputune import HostFacts, Plan, Workload
from cputune.host.facts import Package
from cputune.plans.layout import baseline_plan
from cputune.ranks import foreground
from cputune.ranks.runner import ProcessRunner
from cputune.ranks.typed import alone
from cputune.records.steps import Infeasible

CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    return cputune.probe()


SETVARS = """
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
echo "noise on stdout"
export CCL_ROOT="$root" I_MPI_ROOT="$root" PATH="$root/bin:$PATH" ODD="two
lines"
"""
MPIRUN = f"""#!{sys.executable}
import json, os, sys
if sys.argv[1:] == ["--version"]:
    print("Intel(R) MPI Library for Linux* OS, Version 2021.18")
else:
    told = dict(os.environ)
    json.dump([sys.argv[1:], told], open("started", "w"))
    sys.exit(7)
"""


@pytest.fixture
def oneccl(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The layout of the real wheel: module, env/setvars.sh, Intel MPI beside it."""
    module = workdir / "oneccl_bindings_for_pytorch"
    for name, text in (
        ("__init__.py", "raise SystemExit('imported')"),
        ("env/setvars.sh", SETVARS),
        ("bin/mpirun", MPIRUN),
    ):
        (module / name).parent.mkdir(parents=True, exist_ok=True)
        (module / name).write_text(text)
    (module / "bin/mpirun").chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(workdir))
    return module


def test_several_ranks_of_a_script_are_compared_unless_that_is_left_out(facts: HostFacts) -> None:
    two = Plan(processes_per_node=2, threads_per_process=1, cpus=((CPUS[0],), (CPUS[-1],)))
    job = replace(Workload.script(["train.py"], global_batch_size=8), framework="accelerate")
    assert all('"guard": true' in line for line in foreground.lines(job, two, facts))
    assert not any("guard" in line for line in foreground.lines(job, two, facts, guard=False))


CCL = Plan(
    processes_per_node=2,
    threads_per_process=1,
    ccl_workers=1,
    backend="ccl",
    cpus=((CPUS[0],), (CPUS[-1],)),
    ccl_cpus=((CPUS[0],), (CPUS[-1],)),
)


def test_the_mpirun_of_setvars_starts_the_ranks_of_oneccl(
    oneccl: Path, facts: HostFacts, tmp_path: Path
) -> None:
    older = {"torch": "2.5.0", "oneccl-bind-pt": "2.5.0"}
    older |= {"transformers": "4.46.0", "accelerate": "1.0.0"}
    (tmp_path / "train.py").touch()
    packages = tuple(Package(name=name, version=of) for name, of in older.items())
    job = Workload.script(["train.py", "--lr", "1"], global_batch_size=8)
    assert foreground.run(job, CCL, replace(facts, packages=packages)) == 7
    words, told = json.loads((tmp_path / "started").read_text())
    assert words[:4] == ["-n", "2", "-ppn", "2"]
    assert (told["CCL_ROOT"], told["ODD"]) == (str(oneccl), "two\nlines")
    assert told["I_MPI_PIN"] == "off"  # rank.py binds
    # The variables of the plan go through env to each rank, whichever MPI starts it.
    assert "CCL_WORKER_COUNT=1" in words
    assert f"CCL_WORKER_AFFINITY={CPUS[0]},{CPUS[-1]}" in words
    assert words[-3:] == ["train.py", "--lr", "1"]


def test_a_trial_over_oneccl_is_refused_if_the_versions_know_none(facts: HostFacts) -> None:
    job = Workload.script([__file__]).observed(
        framework="trainer", global_batch_size=8, parses_arguments=False
    )
    with (
        ProcessRunner(job, facts, offline=True) as runner,
        pytest.raises(Infeasible, match="cannot train with ccl"),
    ):
        next(runner.steps(CCL))


def test_a_baseline_plan_is_the_launch_that_was_typed(facts: HostFacts) -> None:
    words = ["torchrun", "--nproc-per-node", "2", "train.py"]
    assert alone(Workload.script(words), baseline_plan(facts), facts)["argv"] == words


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
rank = {"argv": [sys.executable, "train.py"], "env": dict(os.environ)}
sys.exit(supervise([rank, rank]))
"""


def test_the_terminal_tells_each_rank_once(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workdir / "train.py").write_text(SCRIPT)
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
