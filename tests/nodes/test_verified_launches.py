"""``cputune verify`` on two hosts: every rank of both is heard, and held against the plan."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from consumers import install as launchers
from consumers.launches import two_ranks
from nodes import install
from nodes.cluster import Cluster, two_hosts
from nodes.launches import tiny, write
from nodes.namespaces import Odd, until
from nodes.slurm_nodes import slurm

from cputune import Workload

pytestmark = [pytest.mark.nodes, pytest.mark.torch, pytest.mark.slow]


def verify(hosts: Cluster, script: Path, *options: str) -> dict[str, dict[str, Any]]:
    """The checks of a launch by their names, as they are seen from alpha."""
    argv = [sys.executable, "-m", "cputune", "verify", "--steps", "3", "--share-machine", "--json"]
    done = hosts.run("alpha", [*argv, *options, str(script)], check=False, timeout=600)
    assert done.stdout, done.stderr
    (verdict,) = json.loads(done.stdout)["verdicts"]
    return {check["name"]: check for check in verdict["checks"]}


def assert_seen_on_both(checks: dict[str, dict[str, Any]], *, numbered: bool = True) -> None:
    told = {name: (check["state"], check["summary"]) for name, check in checks.items()}
    assert told.pop("throughput")[0] == "not checked", "what was tuned is one node"
    assert {state for state, _ in told.values()} == {"passed"}, told
    assert checks["hosts"]["summary"] == "ranks: 2 on alpha, 2 on beta"
    assert checks["launch"]["summary"].startswith("4 ranks made 3 steps")
    assert {"threads", "precision", "backend", "world size", "global batch"} <= set(checks)
    if numbered:
        seen = [row["seen"] for row in checks["affinity"]["evidence"]]
        assert seen == [str(cpus[0]) for cpus in two_ranks().cpus] * 2


def assert_nothing_is_left(hosts: Cluster) -> None:
    """Open MPI 4 ends a moment before its daemons do."""
    until(lambda: [hosts.left(name) for name in hosts.names] == [[], []] or None)
    temporary = [Path(hosts.hosts[name].environment["TMPDIR"]) for name in hosts.names]
    assert [path for folder in temporary for path in folder.glob("cputune*")] == []


@pytest.mark.parametrize("format", ["mpirun", "accelerate"])
@pytest.mark.parametrize("mpi", ["mpich", "openmpi5", "openmpi4", "impi"])
def test_what_mpi_starts(mpi: str, format: str, tmp_path: Path) -> None:
    odd = Odd(environment={"PATH": f"{launchers.install(mpi) / 'bin'}:{os.environ['PATH']}"})
    with two_hosts(alpha=odd, beta=odd) as hosts:
        assert_seen_on_both(verify(hosts, write(tmp_path, format, tiny(tmp_path))))
        assert_nothing_is_left(hosts)


def test_what_torchrun_starts(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        assert_seen_on_both(verify(hosts, write(tmp_path, "torchrun", tiny(tmp_path))))
        assert_nothing_is_left(hosts)


def test_a_host_that_has_not_the_cpus_is_named(tmp_path: Path) -> None:
    first, second = (cpus[0] for cpus in two_ranks().cpus)
    with two_hosts(beta=Odd(cpus=(first,))) as hosts:
        checks = verify(hosts, write(tmp_path, "torchrun", tiny(tmp_path)))
        assert checks["launch"]["state"] == "not checked"
        said = f"beta: CPUs {first}-{second} are not all on this machine"
        assert said in checks["launch"]["summary"]
        assert_nothing_is_left(hosts)


def test_a_host_that_is_not_reached_is_named(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        script = write(tmp_path, "torchrun", tiny(tmp_path))
        checks = verify(hosts, script, "--ssh", "ssh -p 1")
        assert checks["launch"]["state"] == "not checked"
        assert "beta" in checks["launch"]["summary"]
        assert "sshd" in checks["launch"]["remedy"]


def test_a_host_without_the_files_is_given_them(tmp_path: Path) -> None:
    (there := tmp_path / "launch").mkdir()
    script = write(there, "torchrun", tiny(tmp_path))
    with two_hosts(beta=Odd(hidden=(there,))) as hosts:
        assert_seen_on_both(verify(hosts, script))
        assert_nothing_is_left(hosts)


@pytest.mark.skipif(install.why_no_slurm() is not None, reason=str(install.why_no_slurm()))
def test_a_batch_job_of_two_nodes_if_that_is_asked_for(tmp_path: Path) -> None:
    with two_hosts() as hosts, slurm(hosts):
        script = write(tmp_path, "slurm", tiny(tmp_path))
        checks = verify(hosts, script)
        assert checks["launch"]["state"] == "not checked"
        assert "--submit" in checks["launch"]["remedy"]
        assert_seen_on_both(verify(hosts, script, "--submit"), numbered=False)
        until(lambda: hosts.run("alpha", ["squeue", "--noheader"]).stdout == "")
        assert_nothing_is_left(hosts)
        assert list(Path("/tmp").glob("cputune-verify-*")) == []


@pytest.mark.parametrize("format", ["mpirun", "torchrun"])
def test_nothing_outlives_a_verify_that_is_killed(format: str, tmp_path: Path) -> None:
    place = tmp_path / "sleeps.py"
    place.write_text("import time; time.sleep(600)")
    job = Workload.script([str(place)])
    job = job.observed(framework="trainer", global_batch_size=8, parses_arguments=True)
    odd = Odd(environment={"PATH": f"{launchers.install('mpich') / 'bin'}:{os.environ['PATH']}"})
    with two_hosts(alpha=odd, beta=odd) as hosts:
        launch = write(tmp_path, format, job)
        argv = [sys.executable, "-m", "cputune", "verify", "--share-machine", str(launch)]
        started: subprocess.Popen[str] = hosts.start("alpha", argv)

        def training() -> bool:
            return all(any("sleeps.py" in one for one in hosts.left(name)) for name in hosts.names)

        until(training, 300)
        hosts.itself(started).send_signal(signal.SIGKILL)
        started.communicate()
        until(lambda: [hosts.left(name) for name in hosts.names] == [[], []], 60)
