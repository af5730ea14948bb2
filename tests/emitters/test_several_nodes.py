"""Launches on several nodes: the interface, who takes how many samples, what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from emit_machines import TODAY, machine, planned, script_workload, tuned
from golden_texts import Golden
from rows import every_row

from cputune import Cluster, EmittedFile, HostFacts, Result, UsageError, Workload, emit
from cputune.emitters import FORMATS, parse_hosts
from cputune.plans.cores import usable_cores
from cputune.plans.layout import make_plan

ETH0 = Cluster(interface="eth0")
HOSTS = parse_hosts("node1,node2")


def facts() -> HostFacts:
    return machine("Intel(R) Xeon(R) 8480+", sockets=2, cores=8)


def result(workload: Workload | None = None) -> Result:
    here = facts()
    plan = make_plan(usable_cores(here), 2, precision="bf16")
    return tuned(here, plan, workload or Workload.from_recipe("bert-base-squad"), TODAY)


def main(format: str = "torchrun", **options: Any) -> EmittedFile:
    values: dict[str, Any] = {"facts": facts(), "hosts": HOSTS, **options}
    return emit(values.pop("result", result()), format, **values)[0]


def said(file: EmittedFile) -> str:
    """The header of a file as one line."""
    return " ".join(line.lstrip("# ") for line in file.text.splitlines() if line.startswith("#"))


class TestInterface:
    @every_row("format", FORMATS)
    def test_loopback_between_nodes_is_refused_in_every_format(self, format: str) -> None:
        with pytest.raises(UsageError, match="loopback"):
            main(format, cluster=Cluster(interface="lo"))

    @every_row(
        ("mpi", "words"),
        [
            ("intelmpi", ["-iface eth0"]),
            ("mpich", ["-iface eth0"]),
            ("openmpi4", ["--mca btl_tcp_if_include eth0", "--mca oob_tcp_if_include eth0"]),
            ("openmpi5", ["--mca btl_tcp_if_include eth0", "--mca oob_tcp_if_include eth0"]),
        ],
    )
    def test_the_launcher_gets_it_too(self, mpi: str, words: list[str]) -> None:
        text = main("mpirun", mpi=mpi, cluster=ETH0).text
        assert all(f" {word}" in text for word in words)


def test_another_global_batch_is_said_to_be_another_training() -> None:
    """One node was measured: 2 ranks with 6 samples each (global batch 12)."""
    file = main(workload=Workload.from_recipe("bert-base-squad", batch_per_rank=6))
    assert "4 ranks with 6 samples each, 24 together" in said(file)
    assert "The global batch is 24, 12 were measured" in said(file)


class TestNobodysBatch:
    def test_flags_without_a_batch_are_refused_on_several_nodes(self, golden: Golden) -> None:
        with golden.raises(UsageError) as caught:
            main(workload=replace(script_workload("--do_train"), global_batch_size=None))
        assert "--global-batch-size" in str(caught.value.hint)
        assert "--batch-per-rank" in str(caught.value.hint)

    def test_a_loop_of_its_own_takes_its_batch_on_every_rank(self, golden: Golden) -> None:
        loop = replace(Workload.script(["loop.py"]), framework="pytorch", global_batch_size=32)
        with pytest.raises(UsageError, match=r"4 × 32 = 128 samples") as caught:
            main(workload=loop)
        golden(str(caught.value.hint))
        assert main(workload=replace(loop, batch_per_rank=8))


def test_the_interface_of_the_trials_is_that_of_the_launch() -> None:
    over = replace(planned(result(), nodes=2), hosts=("node1", "node2"), interface="ib0")
    assert "GLOO_SOCKET_IFNAME=ib0" in main(result=over, hosts=()).text
