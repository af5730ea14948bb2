"""Launches on several nodes: the interface, who takes how many samples, what was measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from confirmed import UNCOMPARED
from emit_machines import TODAY, machine, script_workload, tuned
from golden_texts import Golden
from rows import every_row

from cputune import Cluster, EmittedFile, HostFacts, Result, UsageError, Workload, emit
from cputune.emitters import FORMATS, parse_hosts
from cputune.emitters.command import PLAN_FILE
from cputune.launch.launchers.mpirun import DIALECTS
from cputune.plans.cores import usable_cores
from cputune.plans.layout import make_plan

ETH0 = Cluster(interface="eth0")
HOSTS = parse_hosts("node1,node2")
OF_NODES = ("mpirun", "accelerate", "torchrun")
"""Formats that name their hosts."""


def facts() -> HostFacts:
    return machine("Intel(R) Xeon(R) 8480+", sockets=2, cores=8)


def result(workload: Workload | None = None) -> Result:
    here = facts()
    plan = make_plan(usable_cores(here), 2, precision="bf16")
    return tuned(here, plan, workload or Workload.from_recipe("bert-base-squad"), TODAY)


def main(format: str = "torchrun", **options: Any) -> EmittedFile:
    values: dict[str, Any] = {"facts": facts(), "hosts": HOSTS, **options}
    return emit(values.pop("result", result()), format, **values)[0]


def promise(**options: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"facts": facts(), "hosts": HOSTS, **options}
    (text,) = [file.text for file in emit(result(), "torchrun", **values) if file.name == PLAN_FILE]
    said: dict[str, Any] = json.loads(text)
    return said


def said(file: EmittedFile) -> str:
    """The header of a file as one line."""
    return " ".join(line.lstrip("# ") for line in file.text.splitlines() if line.startswith("#"))


class TestInterface:
    @pytest.mark.parametrize("format", OF_NODES)
    def test_the_user_names_it(self, format: str) -> None:
        file = main(format, mpi="mpich", cluster=ETH0)
        assert re.search(r"GLOO_SOCKET_IFNAME[ =]eth0", file.text)
        assert re.search(r"FI_TCP_IFACE[ =]eth0", file.text)
        assert "IFNAME" not in main(format, mpi="mpich").text

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

    @every_row("mpi", [None, *DIALECTS])
    def test_accelerate_s_launcher_gets_variables(self, mpi: str | None) -> None:
        text = main("accelerate", mpi=mpi, cluster=ETH0).text
        names = {
            "intelmpi": "I_MPI_HYDRA_IFACE",
            "mpich": "HYDRA_IFACE",
            "openmpi4": "OMPI_MCA_oob_tcp_if_include",
            "openmpi5": "PRTE_MCA_prte_if_include",
        }
        for name in names.values() if mpi is None else [names[mpi]]:
            assert f" {name}=eth0" in text

    @pytest.mark.parametrize("format", ["pytorchjob", "trainjob"])
    def test_pods_get_only_what_the_user_names(self, format: str) -> None:
        over = replace(result(), hosts=("node1", "node2"), interface="ib0")
        assert "IFNAME" not in main(format, result=over).text
        assert "GLOO_SOCKET_IFNAME" in main(format, cluster=ETH0).text


class TestScale:
    """One node was measured: 2 ranks with 6 samples each (global batch 12)."""

    @every_row("format", FORMATS)
    def test_header_and_notes_say_what_is_extrapolated(self, format: str) -> None:
        file = main(format)
        wanted = "Extrapolated: 2 nodes, 4 ranks with 3 samples each, 12 together."
        assert "Measured: 1 node, 2 ranks with 6 samples each, 12 together" in said(file)
        assert wanted in said(file)
        assert any(wanted in note for note in file.notes)

    def test_the_speed_of_one_node_is_not_promised_for_two(self) -> None:
        assert "samples_per_second" not in promise()
        assert "samples_per_second" in promise(hosts=(), nodes=1)

    def test_another_global_batch_is_said_to_be_another_training(self) -> None:
        workload = Workload.from_recipe("bert-base-squad", batch_per_rank=6)
        file = main(workload=workload)
        assert "4 ranks with 6 samples each, 24 together" in said(file)
        assert "The global batch is 24, 12 were measured" in said(file)

    def test_a_plan_that_was_measured_on_two_nodes_is_no_extrapolation(self) -> None:
        found = result()
        best = replace(found.best, plan=replace(found.best.plan, nodes=2))
        file = main(result=replace(found, best=best, **UNCOMPARED))
        assert "Extrapolated" not in file.text
        assert "Batch: 2 nodes, 4 ranks with 3 samples each, 12 together." in said(file)


class TestNobodysBatch:
    def unknown(self, **fields: Any) -> Workload:
        return replace(script_workload("--do_train"), global_batch_size=None, **fields)

    def test_flags_without_a_batch_are_refused_on_several_nodes(self, golden: Golden) -> None:
        with pytest.raises(UsageError) as caught:
            main(workload=self.unknown())
        golden(caught.value)
        assert "--global-batch-size" in str(caught.value.hint)
        assert "--batch-per-rank" in str(caught.value.hint)

    def test_the_user_s_choice_is_taken(self) -> None:
        assert main(workload=self.unknown(batch_per_rank=4))
        assert main(workload=replace(self.unknown(), global_batch_size=96))

    def test_a_loop_of_its_own_takes_its_batch_on_every_rank(self, golden: Golden) -> None:
        loop = replace(Workload.script(["loop.py"]), framework="pytorch", global_batch_size=32)
        with pytest.raises(UsageError, match=r"4 × 32 = 128 samples") as caught:
            main(workload=loop)
        golden(str(caught.value.hint))
        assert main(workload=replace(loop, batch_per_rank=8))

    def test_a_script_that_carry_py_divides_keeps_its_own_batch(self) -> None:
        file = main(workload=Workload.script(["never_run.py"]))
        assert "4 ranks that share the script's own batch" in said(file)


class TestTunedOverHosts:
    def over(self, **changed: Any) -> Result:
        one = result()
        best = replace(one.best, plan=replace(one.best.plan, nodes=2))
        more = {**UNCOMPARED, "interface": "ib0", **changed}
        return replace(one, best=best, hosts=("node1", "node2"), **more)

    def test_the_interface_of_the_trials_is_that_of_the_launch(self) -> None:
        assert "GLOO_SOCKET_IFNAME=ib0" in main(result=self.over(), hosts=()).text

    def test_other_hosts_may_call_theirs_otherwise(self) -> None:
        text = main(result=self.over(), hosts=parse_hosts("node7,node8")).text
        assert "GLOO_SOCKET_IFNAME=ib0" not in text
