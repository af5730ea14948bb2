"""Launches on hosts whose CPUs differ: each rank gets those of its own host."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from emit_machines import TODAY, machine, tuned

from cputune.emitters import EmittedFile, emit, parse_hosts
from cputune.emitters.promise import promise_in
from cputune.errors import UsageError
from cputune.layout import make_plan
from cputune.result import Result
from cputune.workload import Workload

ALPHA, BETA = ((0, 1, 2, 3), (4, 5, 6, 7)), ((8, 9, 10, 11), (12, 13, 14, 15))
FACTS = machine("Intel(R) Xeon(R) w5-3425", sockets=1, cores=8, mpi="mpich")


def result(**changes: Any) -> Result:
    """Tuned over two hosts with other CPUs each."""
    from cputune.cores import usable_cores

    plan = make_plan(usable_cores(FACTS), 2, precision="bf16").on_nodes([ALPHA, BETA])
    workload = Workload.from_recipe("bert-base-squad")
    return replace(tuned(FACTS, plan, workload, TODAY), hosts=("alpha", "beta"), **changes)


def main_file(format: str, **options: Any) -> EmittedFile:
    return emit(result(), format, facts=FACTS, **options)[0]


@pytest.mark.parametrize("format", ["mpirun", "accelerate", "torchrun", "slurm"])
def test_rank_py_is_given_the_cpus_of_each_host_by_its_name(format: str) -> None:
    text = main_file(format).text
    assert re.findall(r"--cpus (\S+)", text)[-2:] == ["0-3/4-7", "8-11/12-15"]
    assert "--hosts 'alpha,beta'" in text


@pytest.mark.parametrize("format", ["mpirun", "accelerate"])
@pytest.mark.parametrize("mpi", ["intelmpi", "mpich", "openmpi4", "openmpi5"])
def test_no_launcher_binds_with_one_list_for_all(format: str, mpi: str) -> None:
    text = main_file(format, mpi=mpi).text
    assert "I_MPI_PIN_DOMAIN" not in text.replace("unset", "").split("launch=(")[1]
    assert "-bind-to user" not in text
    assert "rank.py binds each rank to the CPUs of its own host" in " ".join(text.split("\n# "))


@pytest.mark.parametrize("format", ["mpirun", "accelerate"])
@pytest.mark.parametrize("mpi", ["intelmpi", "mpich", "openmpi4", "openmpi5"])
def test_the_host_file_has_their_order(format: str, mpi: str) -> None:
    files = emit(result(), format, facts=FACTS, mpi=mpi)
    (hosts,) = [file.text for file in files if file.name.startswith("hosts.")]
    assert re.findall(r"^(alpha|beta)", hosts, re.MULTILINE) == ["alpha", "beta"]


def test_the_cpus_follow_the_hosts_in_whatever_order_they_are_named() -> None:
    text = main_file("mpirun", hosts=parse_hosts("beta,alpha")).text
    assert re.findall(r"--cpus (\S+)", text) == ["8-11/12-15", "0-3/4-7"]
    assert promise_in(text).hosts == ("beta", "alpha")


def test_one_of_the_hosts_alone_has_its_own_cpus() -> None:
    text = main_file("mpirun", hosts=parse_hosts("beta")).text
    assert re.findall(r"--cpus (\S+)", text) == ["8-11/12-15"]
    assert "--hosts" not in text


def test_a_host_that_was_not_tuned_is_refused() -> None:
    with pytest.raises(UsageError, match="no CPUs for gamma: it is of alpha, beta, which differ"):
        main_file("mpirun", hosts=parse_hosts("alpha,gamma"))


def test_more_nodes_than_were_tuned_are_refused() -> None:
    with pytest.raises(UsageError, match="CPUs for 2 nodes, which differ; for 3 it has none"):
        main_file("trainjob", nodes=3)


@pytest.mark.parametrize("format", ["pytorchjob", "trainjob"])
def test_containers_say_that_they_cannot_carry_them(format: str) -> None:
    (main, *_) = emit(result(), format, facts=FACTS)
    assert any("a container cannot be told CPUs" in note for note in main.notes)
    assert "--cpus" not in main.text


def test_slurm_is_asked_for_these_very_hosts() -> None:
    assert "#SBATCH --nodelist=alpha,beta\n" in main_file("slurm").text


def test_variables_alone_name_the_cpus_of_each_host() -> None:
    text = main_file("env").text
    assert "Local rank 0 on alpha is for CPUs 0-3" in text
    assert "Local rank 1 on beta is for CPUs 12-15" in text


def test_what_is_promised_reads_back(tmp_path: Any) -> None:
    said = promise_in(main_file("mpirun").text)
    assert said.plan is not None
    assert said.plan.node_cpus[1] == BETA
    assert said.samples_per_second
    alone = promise_in(main_file("mpirun", hosts=parse_hosts("beta")).text)
    assert alone.samples_per_second is None
