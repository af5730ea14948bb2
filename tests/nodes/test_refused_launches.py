"""One host lacks the CPUs of its ranks: the whole job ends within seconds, and says why once."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from consumers import install as launchers
from consumers.launches import two_ranks
from nodes import install
from nodes.cluster import Cluster, two_hosts
from nodes.launches import witnessed, write
from nodes.namespaces import Odd, until
from nodes.slurm_nodes import slurm

pytestmark = [pytest.mark.nodes, pytest.mark.torch, pytest.mark.slow]

FIRST, SECOND = (cpus[0] for cpus in two_ranks().cpus)
WORDS = f"beta: rank 1 cannot have CPUs {SECOND}, it may use {FIRST}"
MOST_SECONDS = 240
"""Far below the time that anything would wait for a rank that does not come: half an hour."""


@pytest.fixture
def narrow_beta(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two hosts with one MPI on PATH; beta has the first CPU alone."""
    path = f"{launchers.install(request.param) / 'bin'}:{os.environ['PATH']}"
    odd = {"alpha": Odd(environment={"PATH": path}), "beta": beta(environment={"PATH": path})}
    with two_hosts(**odd) as hosts:
        yield hosts


def beta(**odd: object) -> Odd:
    return Odd(cpus=(FIRST,), **odd)  # type: ignore[arg-type]


def assert_refused(hosts: Cluster, said: str, began: float) -> None:
    assert time.monotonic() - began < MOST_SECONDS
    assert said.count("error: ") == 1, said
    assert WORDS in said
    # mpirun kills ranks, and does not wait until the kernel has taken their memory back.
    until(lambda: not any(hosts.left(name) for name in hosts.names), 30)


@pytest.mark.parametrize(
    ("narrow_beta", "format"),
    [
        *((mpi, "mpirun") for mpi in ("mpich", "openmpi5", "openmpi4", "impi")),
        *(("mpich", "accelerate"), ("openmpi5", "accelerate")),
    ],
    indirect=["narrow_beta"],
)
def test_under_mpi(narrow_beta: Cluster, format: str, tmp_path: Path) -> None:
    script = write(tmp_path, format, witnessed(tmp_path))
    began = time.monotonic()
    done = narrow_beta.run("alpha", [str(script)], check=False)
    assert done.returncode != 0
    if format == "accelerate" and "openmpi" in narrow_beta.hosts["alpha"].environment["PATH"]:
        # accelerate has it bind to sockets: it refuses too few CPUs itself, in its own words.
        assert time.monotonic() - began < MOST_SECONDS
        assert [narrow_beta.left(name) for name in narrow_beta.names] == [[], []]
        return
    assert_refused(narrow_beta, done.stdout + done.stderr, began)


def test_under_torchrun_each_node_says_it_on_its_terminal(tmp_path: Path) -> None:
    with two_hosts(beta=beta()) as hosts:
        script = write(tmp_path, "torchrun", witnessed(tmp_path))
        began = time.monotonic()
        both = [
            hosts.start(name, [str(script)], env={"NODE_RANK": str(node)})
            for node, name in enumerate(hosts.names)
        ]
        out, err = both[1].communicate(timeout=MOST_SECONDS)
        assert both[1].returncode == 3
        hosts.itself(both[0]).kill()  # it waits for beta as long as torchrun does
        both[0].communicate()
        assert f"error: beta: CPUs {FIRST}-{SECOND} are not all on this machine" in out + err
        assert time.monotonic() - began < MOST_SECONDS


@pytest.mark.skipif(install.why_no_slurm() is not None, reason=str(install.why_no_slurm()))
def test_under_slurm(tmp_path: Path) -> None:
    """Its ranks take what they are offered; a library that a host lacks ends them all the same."""
    (libraries := tmp_path / "libraries").mkdir()
    library = shutil.copy("/lib/x86_64-linux-gnu/libm.so.6", libraries)
    with two_hosts(beta=Odd(hidden=(libraries,))) as hosts, slurm(hosts):
        script = write(tmp_path, "slurm", witnessed(tmp_path))
        text = script.read_text().replace("\nrank=(", f"\nexport LD_PRELOAD={library}\nrank=(")
        script.write_text(text)
        began = time.monotonic()
        argv = ["sbatch", "--wait", "--output=job.out", script.name]
        done = hosts.run("alpha", argv, cwd=tmp_path, check=False, timeout=MOST_SECONDS)
        assert done.returncode != 0
        said = (tmp_path / "job.out").read_text()
        assert time.monotonic() - began < MOST_SECONDS
        assert said.count(f"the plan preloads {library}, which is not here") == 2, said
