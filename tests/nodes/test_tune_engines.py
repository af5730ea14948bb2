"""``cputune tune`` by srun and by every mpirun: trials that are launches, and a killed tuner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from consumers.install import installed, prefix
from nodes import install
from nodes.cluster import Cluster, two_hosts
from nodes.namespaces import Odd, until
from nodes.slurm_nodes import slurm

pytestmark = [pytest.mark.nodes, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

LIGHT = str(Path(__file__).parent.parent / "faults" / "light.py")
ENGINES = ("srun", "mpich", "openmpi4", "impi")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "srun":
        if install.why_no_slurm() is not None:
            pytest.skip(str(install.why_no_slurm()))
    elif not installed(name):
        pytest.skip(f"python tests/consumers/install.py {name}")
    return name


@pytest.fixture
def hosts(engine: str) -> Iterator[Cluster]:
    """Two hosts of one test's own that this engine can reach."""
    odd = Odd()
    if engine != "srun":
        odd = Odd(environment={"PATH": f"{prefix(engine)}/bin:{os.environ['PATH']}"})
    with ExitStack() as stack:
        made = stack.enter_context(two_hosts(alpha=odd, beta=odd))
        if engine == "srun":
            stack.enter_context(slurm(made))
        yield made


def tune(engine: str, hosts: Cluster, folder: Path, *words: str) -> subprocess.Popen[str]:
    """A tuner on the first host."""
    argv = [sys.executable, "-m", "cputune", "tune", "--share-machine", "--max-time", "6m"]
    if engine == "srun":
        argv = ["salloc", "-N2", "--exclusive", "--quiet", *argv]
    else:
        argv += ["--hosts", "alpha,beta", "--through", "mpirun"]
    apart = {"TMPDIR": "/dev/shm"}  # no host sees what another one has there
    return hosts.start("alpha", [*argv, *words, "--", LIGHT, "0.05"], cwd=folder, env=apart)


def ranks(hosts: Cluster, host: str) -> list[str]:
    return [one for one in hosts.left(host) if LIGHT in one and "cputune tune" not in one]


def trains(hosts: Cluster) -> bool:
    return bool(ranks(hosts, "alpha") and ranks(hosts, "beta"))


def ended(tuner: subprocess.Popen[str], folder: Path) -> dict[str, list[dict[str, object]]]:
    out, err = tuner.communicate(timeout=500)
    assert tuner.returncode == 0, f"{out[-3000:]}\n{err[-3000:]}"
    found: dict[str, list[dict[str, object]]] = json.loads((folder / "cputune.json").read_text())
    return found


def test_a_trial_of_two_hosts_is_a_launch_of_the_engine(
    engine: str, hosts: Cluster, tmp_path: Path
) -> None:
    words = ("--budget", "2", "--fix", "nodes=2", "--fix", "ranks=1")
    result = ended(tune(engine, hosts, tmp_path, *words), tmp_path)
    sizes = [{rank["world_size"] for rank in t["observed"]} for t in result["trials"]]  # type: ignore[index,attr-defined]
    assert {2} in sizes, [trial["reason"] for trial in result["trials"]]
    until(lambda: not hosts.left("alpha") and not hosts.left("beta"))


def test_nothing_stays_of_a_tuner_that_is_killed(
    engine: str, hosts: Cluster, tmp_path: Path
) -> None:
    tuner = tune(engine, hosts, tmp_path, "--budget", "9", "--fix", "nodes=2")
    until(lambda: trains(hosts), 200)
    for process in hosts.hosts["alpha"].processes():
        if process.cmdline()[1:4] == ["-m", "cputune", "tune"]:
            process.send_signal(signal.SIGKILL)
    tuner.communicate()
    until(lambda: not ranks(hosts, "alpha") and not ranks(hosts, "beta"), 60)
