"""Emitted launches on two hosts: a recipe trains with four ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from consumers import install as launchers
from nodes.cluster import Cluster, two_hosts
from nodes.launches import tiny, write
from nodes.namespaces import Odd, until

pytestmark = [pytest.mark.nodes, pytest.mark.torch, pytest.mark.slow]

MPIS = ("mpich", "openmpi5", "openmpi4", "impi")
DEBIAN = {name: Odd(first_in_hosts=f"127.0.1.1 {name}") for name in ("alpha", "beta")}


@pytest.fixture
def mpi_hosts(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two hosts with one MPI on PATH, and their own names in /etc/hosts as Debian has them."""
    path = f"{launchers.install(request.param) / 'bin'}:{os.environ['PATH']}"
    named = {name: f"127.0.1.1 {name}" for name in ("alpha", "beta")}
    odd = {n: Odd(first_in_hosts=line, environment={"PATH": path}) for n, line in named.items()}
    with two_hosts(**odd) as hosts:
        yield hosts


def assert_nothing_is_left(hosts: Cluster) -> None:
    """Open MPI 4 ends a moment before its ssh does."""
    until(lambda: [hosts.left(name) for name in hosts.names] == [[], []] or None)


@pytest.mark.parametrize("format", ["mpirun", "accelerate"])
@pytest.mark.parametrize("mpi_hosts", MPIS, indirect=True)
def test_mpi_trains_a_recipe_to_its_end(mpi_hosts: Cluster, format: str, tmp_path: Path) -> None:
    script, out = write(tmp_path, format, tiny(tmp_path)), tmp_path / "out"
    mpi_hosts.run("alpha", [str(script), "--max_steps", "2", "--output_dir", str(out)], timeout=600)
    assert (out / "model.safetensors").exists()
    assert_nothing_is_left(mpi_hosts)


def on_both(hosts: Cluster, script: Path, *arguments: str) -> None:
    """Start the script of torchrun on each host, as pdsh does, to the end."""
    started = [hosts.start(name, [str(script), *arguments]) for name in hosts.names]
    for each in started:
        out, err = each.communicate(timeout=600)
        assert each.returncode == 0, f"{out[-2000:]}\n{err[-4000:]}"


def test_torchrun_trains_a_recipe_to_its_end(tmp_path: Path) -> None:
    with two_hosts(**DEBIAN) as hosts:
        script, out = write(tmp_path, "torchrun", tiny(tmp_path)), tmp_path / "out"
        on_both(hosts, script, "--max_steps", "2", "--output_dir", str(out))
        assert (out / "model.safetensors").exists()
        assert_nothing_is_left(hosts)
