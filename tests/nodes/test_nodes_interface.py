"""Two hosts whose own names lead to loopback: with the interface named it trains."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from consumers import install as launchers
from consumers.launches import result_of, two_ranks
from nodes.cluster import two_hosts
from nodes.launches import assert_four_ranks, witnessed
from nodes.namespaces import Odd

pytestmark = [pytest.mark.nodes, pytest.mark.torch, pytest.mark.slow]


@pytest.mark.parametrize("mpi", ["mpich"])
def test_on_debian_hosts_the_interface_that_is_named_leads_to_the_others(
    mpi: str, tmp_path: Path
) -> None:
    path = f"{launchers.install(mpi) / 'bin'}:{os.environ['PATH']}"
    odd = {
        name: Odd(first_in_hosts=f"127.0.1.1 {name}", environment={"PATH": path})
        for name in ("alpha", "beta")
    }
    result = tmp_path / "cputune.json"
    result.write_text(json.dumps(result_of(two_ranks(), witnessed(tmp_path)).to_json()))
    emit = [sys.executable, "-m", "cputune", "emit", str(result), "--other-machine"]
    options = ["-f", "mpirun", "--hosts", "alpha,beta", "-o", str(tmp_path / "launch")]
    options += ["--interface", "eth0"]
    with two_hosts(**odd) as hosts:
        hosts.run("alpha", [*emit, *options], env={"CPUTUNE_CONFIG": "none"})
        hosts.run("alpha", [str(tmp_path / "launch" / "mpirun.sh")])
        assert_four_ranks(tmp_path)
        assert [hosts.left(name) for name in hosts.names] == [[], []]
