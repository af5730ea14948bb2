"""``cputune run`` starts a plan for several hosts on those that measured it, as its trials ran."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from consumers.install import installed, prefix
from consumers.launches import result_of, two_ranks
from nodes.cluster import Cluster, two_hosts
from nodes.launches import assert_four_ranks, witnessed
from nodes.namespaces import Odd, until

from cputune import Workload

pytestmark = [pytest.mark.nodes, pytest.mark.torch, pytest.mark.slow]

RUN = (sys.executable, "-m", "cputune", "run", "--other-machine", "cputune.json")


def measured(folder: Path, workload: Workload, through: str) -> None:
    """A result of two ranks on each of both hosts."""
    result = result_of(two_ranks(nodes=2), workload)
    there = replace(result, hosts=("alpha", "beta"), interface="eth0", through=through)
    (folder / "cputune.json").write_text(json.dumps(there.to_json()))


@pytest.fixture(params=["ssh", "mpich"])
def way(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, str]]:
    if request.param == "ssh":
        with two_hosts() as hosts:
            yield hosts, "ssh"
        return
    if not installed(request.param):
        pytest.skip(f"python tests/consumers/install.py {request.param}")
    odd = Odd(environment={"PATH": f"{prefix(request.param)}/bin:{os.environ['PATH']}"})
    with two_hosts(alpha=odd, beta=odd) as hosts:
        yield hosts, "mpirun"


def test_a_plan_of_two_hosts_trains_there_to_its_end(
    way: tuple[Cluster, str], tmp_path: Path
) -> None:
    hosts, through = way
    measured(tmp_path, witnessed(tmp_path), through)
    done = hosts.run("alpha", RUN, cwd=tmp_path, timeout=600)
    assert f"on alpha, beta, through {through}" in done.stderr
    assert_four_ranks(tmp_path)
    until(lambda: [hosts.left(name) for name in hosts.names] == [[], []] or None)


FAILS = """
import os, sys, time
print("rank", os.environ["RANK"], "began", flush=True)
if os.environ["RANK"] == "3":
    sys.exit(7)
time.sleep(600)
"""


def test_output_comes_at_once_and_one_rank_that_fails_ends_all(
    hosts: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    job = Workload.script([str(tmp_path / "fails.py")])
    job = job.observed(framework="trainer", global_batch_size=8, parses_arguments=False)
    measured(tmp_path, job, shlex.join(hosts.ssh))
    done = subprocess.run(RUN, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode != 0
    assert all(f"rank {number} began" in done.stdout for number in range(4)), done
    until(lambda: [hosts.left(name) for name in hosts.names] == [[], []] or None)


def test_nothing_is_left_of_a_run_that_is_killed(hosts: Cluster, tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text("import time\nprint('began', flush=True)\ntime.sleep(600)")
    job = Workload.script([str(tmp_path / "sleeps.py")])
    job = job.observed(framework="trainer", global_batch_size=8, parses_arguments=False)
    measured(tmp_path, job, shlex.join(hosts.ssh))
    with subprocess.Popen(RUN, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == "began\n"
        time.sleep(35)  # without a beat the hosts would have ended it
        assert run.poll() is None
        run.send_signal(signal.SIGKILL)
    until(lambda: [hosts.left(name) for name in hosts.names] == [[], []] or None, 60)
