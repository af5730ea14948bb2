"""The other ways to hosts than ssh: an mpirun of each dialect, and srun in an allocation."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
from consumers.install import installed, prefix
from nodes import install
from nodes.cluster import two_hosts
from nodes.namespaces import Odd, until
from nodes.slurm_nodes import slurm

from cputune.text import cpulist

pytestmark = pytest.mark.nodes

DOCTOR = (sys.executable, "-m", "cputune", "doctor", "--json", "--fail-on", "never")


def reached(text: str) -> dict[str, Any]:
    return {host["name"]: host["reached"] or host["reason"] for host in json.loads(text)["hosts"]}


@pytest.mark.parametrize("mpi", ["mpich", "openmpi4", "impi"])
def test_hosts_are_reached_by_an_mpirun(mpi: str) -> None:
    if not installed(mpi):
        pytest.skip(f"python tests/consumers/install.py {mpi}")
    path = Odd(environment={"PATH": f"{prefix(mpi)}/bin:{os.environ['PATH']}"})
    with two_hosts(alpha=path, beta=path) as hosts:
        asked = (*DOCTOR, "--hosts", "alpha,beta", "--through", "mpirun")
        done = hosts.run("alpha", asked, timeout=600)
        assert reached(done.stdout) == {"alpha": True, "beta": True}
        told = json.loads(done.stdout)["hosts"]
        allowed = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        assert [host["host"]["topology"]["allowed"] for host in told] == [
            cpulist.render(cpulist.parse(allowed))
        ] * 2
        for name in hosts.names:
            until(lambda name=name: not hosts.left(name))


@pytest.mark.skipif(install.why_no_slurm() is not None, reason=str(install.why_no_slurm()))
def test_an_allocation_needs_no_names() -> None:
    with two_hosts() as hosts, slurm(hosts):
        asked = (*DOCTOR, "--host-timeout", "60")
        done = hosts.run("alpha", ["salloc", "--quiet", "-N2", *asked])
        assert reached(done.stdout) == {"alpha": True, "beta": True}
        outside = hosts.run(
            "alpha",
            [
                "salloc",
                "--quiet",
                "-N1",
                "-w",
                "alpha",
                *asked,
                "--through",
                "srun",
                "--hosts",
                "alpha,beta",
            ],
        )
        assert reached(outside.stdout) == {"alpha": True, "beta": "it is not in our allocation"}
