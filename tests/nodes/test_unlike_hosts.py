"""Hosts whose CPUs differ: each rank is on those of its own host, in whatever order they stand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from consumers import install as launchers
from consumers.launches import result_of, two_ranks
from nodes import install
from nodes.cluster import Cluster, two_hosts
from nodes.namespaces import Odd, until
from nodes.slurm_nodes import slurm

import cputune
from cputune.emitters import parse_hosts
from cputune.plan import Plan
from cputune.workload import Workload

pytestmark = [pytest.mark.nodes, pytest.mark.slow]

FIRST, SECOND = (cpus[0] for cpus in two_ranks().cpus)
WHERE = """
import json, os, sys
seen = [os.uname().nodename, sorted(os.sched_getaffinity(0))]
with open(os.path.join(sys.argv[1], "rank" + os.environ["RANK"]), "w") as file:
    json.dump(seen, file)
"""
PLAN = Plan(processes_per_node=1, threads_per_process=1, precision="bf16", cpus=((FIRST,),))
UNLIKE = PLAN.on_nodes([((FIRST,),), ((SECOND,),)])
"""alpha has the first CPU alone, beta the second."""


def write(directory: Path, format: str, workload: Workload, hosts: str = "alpha,beta") -> Path:
    """The launch of what was tuned on both, on these hosts; returns what is started."""
    result = replace(result_of(UNLIKE, workload), hosts=("alpha", "beta"))
    cluster = cputune.Cluster(interface="eth0")
    named = parse_hosts(hosts)
    files = cputune.emit(result, format, hosts=named, cluster=cluster, python=sys.executable)
    for file in files:
        (directory / file.name).write_text(file.text)
        (directory / file.name).chmod(0o755 if file.executable else 0o644)
    return directory / f"{format}.sh"


def unlike(mpi: str = "mpich") -> dict[str, Odd]:
    environment = {"PATH": f"{launchers.install(mpi) / 'bin'}:{os.environ['PATH']}"}
    cpus = {"alpha": (FIRST,), "beta": (SECOND,)}
    return {name: Odd(cpus=own, environment=environment) for name, own in cpus.items()}


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with two_hosts(**unlike(request.param)) as made:
        yield made


@pytest.fixture
def script(tmp_path: Path) -> Workload:
    """A script that only writes down where it runs."""
    place = tmp_path / "where.py"
    place.write_text(WHERE)
    script = Workload.script([str(place), str(tmp_path)])
    return script.observed(framework="trainer", global_batch_size=8, parses_arguments=True)


def assert_each_on_its_own(directory: Path, hosts: Cluster, order: tuple[str, ...]) -> None:
    own = {"alpha": [FIRST], "beta": [SECOND]}
    seen = [json.loads((directory / f"rank{n}").read_text()) for n in range(len(order))]
    assert sorted(seen) == sorted([name, own[name]] for name in order)
    assert seen == [[name, own[name]] for name in order]
    assert [hosts.left(name) for name in hosts.names] == [[], []]


@pytest.mark.parametrize("order", [("alpha", "beta"), ("beta", "alpha")])
@pytest.mark.parametrize("format", ["mpirun", "accelerate"])
@pytest.mark.parametrize("hosts", ["mpich", "openmpi5", "openmpi4", "impi"], indirect=True)
def test_under_mpi(
    hosts: Cluster, format: str, order: tuple[str, ...], script: Workload, tmp_path: Path
) -> None:
    launch = write(tmp_path, format, script, ",".join(order))
    hosts.run(order[0], [str(launch)])  # as it wants: on the first of them
    assert_each_on_its_own(tmp_path, hosts, order)


@pytest.mark.parametrize("order", [("alpha", "beta"), ("beta", "alpha")])
@pytest.mark.parametrize("hosts", ["mpich"], indirect=True)
def test_under_torchrun(
    hosts: Cluster, order: tuple[str, ...], script: Workload, tmp_path: Path
) -> None:
    launch = write(tmp_path, "torchrun", script, ",".join(order))
    started = [
        hosts.start(name, [str(launch)], env={"NODE_RANK": str(node)})
        for node, name in enumerate(order)
    ]
    for one in started:
        assert one.wait(60) == 0
        one.communicate()
    assert_each_on_its_own(tmp_path, hosts, order)


@pytest.mark.skipif(install.why_no_slurm() is not None, reason=str(install.why_no_slurm()))
def test_slurm_gives_its_hosts_in_its_own_order(script: Workload, tmp_path: Path) -> None:
    """It sorts them by name; rank.py finds out where it is."""
    with two_hosts() as hosts, slurm(hosts):
        launch = write(tmp_path, "slurm", script, "beta,alpha")
        argv = ["sbatch", "--wait", "--output=job.out", launch.name]
        done = hosts.run("alpha", argv, cwd=tmp_path, check=False)
        assert done.returncode == 0, (tmp_path / "job.out").read_text()
        assert_each_on_its_own(tmp_path, hosts, ("alpha", "beta"))


@pytest.mark.parametrize("hosts", ["mpich"], indirect=True)
@pytest.mark.parametrize("format", ["mpirun", "torchrun"])
def test_nothing_outlives_a_verify_that_is_killed(
    hosts: Cluster, format: str, script: Workload, tmp_path: Path
) -> None:
    (tmp_path / "where.py").write_text("import time; time.sleep(600)")
    launch = write(tmp_path, format, script)
    argv = [sys.executable, "-m", "cputune", "verify", "--share-machine", str(launch)]
    started: subprocess.Popen[str] = hosts.start("alpha", argv)

    def training() -> bool:
        return all(any("where.py" in one for one in hosts.left(name)) for name in hosts.names)

    until(training, 60)
    hosts.itself(started).send_signal(signal.SIGKILL)
    started.communicate()
    until(lambda: [hosts.left(name) for name in hosts.names] == [[], []], 60)
