"""``cputune tune`` by each engine: trials that are launches, a lost host, a killed tuner."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from consumers.install import installed, prefix
from nodes import install
from nodes.cluster import Cluster, two_hosts
from nodes.namespaces import Odd, until
from nodes.slurm_nodes import slurm

pytestmark = [pytest.mark.nodes, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1200)]

LIGHT = str(Path(__file__).with_name("answering.py"))
MPIS = ("mpich", "openmpi4", "impi")
LONG_SECONDS = 400
"""For trials to begin on a busy machine; what is there sooner is not waited for."""
ENGINES = ("ssh", "srun", *MPIS)
SCRIPT = f"""
import os, runpy, sys
ranks = int(os.environ.get("WORLD_SIZE", "1"))
sys.argv[1:] = [sys.argv[1] if ranks > 1 else "0.1"]
runpy.run_path({LIGHT!r})
"""
"""The steps of a job of several ranks last so many seconds."""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "srun":
        if install.why_no_slurm() is not None:
            pytest.skip(str(install.why_no_slurm()))
    elif name != "ssh" and not installed(name):
        pytest.skip(f"python tests/consumers/install.py {name}")
    return name


@pytest.fixture
def hosts(engine: str) -> Iterator[Cluster]:
    """Two hosts of one test's own that this engine can reach."""
    odd = Odd()
    if engine in MPIS:
        odd = Odd(environment={"PATH": f"{prefix(engine)}/bin:{os.environ['PATH']}"})
    with ExitStack() as stack:
        made = stack.enter_context(two_hosts(alpha=odd, beta=odd))
        if engine == "srun":
            stack.enter_context(slurm(made))
        yield made


@pytest.fixture
def script(tmp_path: Path) -> Path:
    place = tmp_path / "two.py"
    place.write_text(SCRIPT)
    return place


def tune(
    engine: str, hosts: Cluster, script: Path, *words: str, step_seconds: float = 0.05
) -> subprocess.Popen[str]:
    """A tuner on the first host."""
    argv = [sys.executable, "-m", "cputune", "tune", "--share-machine", "--max-time", "9m"]
    ways = {
        "ssh": ["--hosts", "alpha,beta", "--through", "ssh"],
        "srun": [],
    }
    argv += ways.get(engine, ["--hosts", "alpha,beta", "--through", "mpirun"])
    if engine == "srun":
        argv = ["salloc", "-N2", "--exclusive", "--no-kill", "--quiet", *argv]
    apart = {"TMPDIR": "/dev/shm"}  # no host sees what another one has there
    words = (*words, "--", str(script), str(step_seconds))
    return hosts.start("alpha", [*argv, *words], cwd=script.parent, env=apart)


def ranks(hosts: Cluster, host: str, script: Path) -> list[str]:
    return [one for one in hosts.left(host) if str(script) in one and "cputune tune" not in one]


def training(hosts: Cluster, host: str, script: Path) -> bool:
    """Whether a rank there reports: to the tuner, or to the relay of its host."""
    with contextlib.suppress(psutil.Error, OSError):
        for process in hosts.hosts[host].processes():
            words = process.cmdline()
            starts_others = "torch.distributed.run" in words or "tune" in words
            if str(script) not in words or not process.name().startswith("python"):
                continue
            open_files = [os.readlink(one) for one in Path(f"/proc/{process.pid}/fd").iterdir()]
            table = Path(f"/proc/{process.pid}/net/unix").read_text().splitlines()[1:]
            lines = [line.split() for line in table]
            connected = any(row[5] == "03" and f"socket:[{row[6]}]" in open_files for row in lines)
            if connected and not starts_others:  # 03: connected (proc(5))
                return True
    return False


NOT_COMPARED = 4
"""How ``cputune tune`` ends where no plan was compared with the baseline."""


def ended(tuner: subprocess.Popen[str], script: Path, *, code: int = 0) -> dict[str, Any]:
    out, err = tuner.communicate(timeout=900)
    assert tuner.returncode == code, f"{out[-3000:]}\n{err[-3000:]}"
    found: dict[str, Any] = json.loads(script.with_name("cputune.json").read_text())
    return found


def test_a_trial_is_a_launch_of_the_engine_and_the_best_is_confirmed(
    engine: str, hosts: Cluster, script: Path
) -> None:
    words = ("--budget", "2", "--fix", "nodes=2", "--fix", "ranks=1")
    result = ended(tune(engine, hosts, script, *words), script)
    sizes = [{rank["world_size"] for rank in trial["observed"]} for trial in result["trials"]]
    assert {2} in sizes, [trial["reason"] for trial in result["trials"]]
    assert {run["plan"]["nodes"] for run in result["confirmation"]} == {1, 2}
    assert result["best"]["plan"]["nodes"] == 2
    until(lambda: not hosts.left("alpha") and not hosts.left("beta"))
    assert {name: files_left(hosts, name) for name in hosts.names} == {
        name: [] for name in hosts.names
    }


def files_left(hosts: Cluster, host: str) -> list[str]:
    """Of ours: Open MPI 4 has its own there."""
    left = hosts.run(host, ["find", "/dev/shm", "-mindepth", "1"]).stdout.splitlines()
    return [path for path in left if not path.startswith("/dev/shm/ompi.")]


def test_a_host_that_is_cut_off_is_named_and_ends_the_study(
    engine: str, hosts: Cluster, script: Path
) -> None:
    words = ("--budget", "3", "--knobs", "nodes,threads", "--fix", "ranks=1")
    tuner = tune(engine, hosts, script, *words, step_seconds=3)  # one is going on
    until(lambda: training(hosts, "beta", script), LONG_SECONDS)
    hosts.cut("beta")
    result = ended(tuner, script, code=NOT_COMPARED)
    lost = [trial for trial in result["trials"] if trial["kind"] == "host lost"]
    assert [trial["reason"].partition(":")[0] for trial in lost] == ["beta was lost"]
    assert result["trials"][-1] == lost[0]
    assert any("beta was lost" in note and "--resume" in note for note in result["notes"])
    for name in hosts.names:
        until(lambda name=name: not ranks(hosts, name, script), 60)


def test_nothing_stays_of_a_tuner_that_is_killed(engine: str, hosts: Cluster, script: Path) -> None:
    tuner = tune(engine, hosts, script, "--budget", "9", "--fix", "nodes=2")
    until(lambda: all(training(hosts, name, script) for name in hosts.names), LONG_SECONDS)
    for process in hosts.hosts["alpha"].processes():
        if process.cmdline()[1:4] == ["-m", "cputune", "tune"]:
            process.send_signal(signal.SIGKILL)
    tuner.communicate()
    until(lambda: not ranks(hosts, "alpha", script) and not ranks(hosts, "beta", script), 60)
    until(lambda: not any(files_left(hosts, name) for name in hosts.names), 60)
