"""One advice: whatever a page, a plan or a launch says of ranks and threads is the same."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from clean_machine import IPEX_ERA, changed
from doctor_machines import INTEL_MPI, MACHINES, OPEN_MPI, RECORDED
from hosts.builder import machine
from hosts.recordings import NAMES, open_recording
from rows import every_row
from stacks import TODAY

from cputune import HostFacts, Workload, diagnose, emit, probe
from cputune.doctor.variables import advised, advised_launch
from cputune.emitters import parse_hosts
from cputune.host.facts import Launcher, Package
from cputune.plans.layout import advise, guide_plan

# Machines of other kinds: one core a socket, cores of two speeds, sockets of several sizes.
SIXTEEN_SOCKETS = {"sockets": 16, "cores": 1, "nodes": 1}
FAST_AND_SLOW = {"cores": 14, "smt": 2, "e_cores": 8}
UNEQUAL = {"sockets": 4, "cores": [2, 2, 2, 1]}

TORCHRUN = Launcher(name="torchrun", path="/venv/bin/torchrun")
LAUNCHERS: dict[str, tuple[Launcher, ...]] = {
    "none": (),
    "torchrun": (TORCHRUN,),
    "Intel MPI": (TORCHRUN, INTEL_MPI),
    "Open MPI": (OPEN_MPI,),
}


def agrees(facts: HostFacts) -> None:
    """Every command of the page, the guides' plan, and what is emitted without a result."""
    advice, plan = advised(facts), guide_plan(facts)
    page = [finding.command for finding in diagnose(facts).findings if finding.command]
    here = {item.name for item in facts.launchers}
    for command in page:
        if "install" in command or command.startswith(("echo", "sudo", "docker")):
            continue
        workers = int((re.findall(r"CCL_WORKER_COUNT=(\d+)", command) or [advice.ccl_workers])[0])
        for threads in re.findall(r"OMP_NUM_THREADS=(\d+)", command):
            assert int(threads) + workers == advice.threads + advice.ccl_workers, command
        told = re.findall(r"(?: -n |--nproc-per-node |PET_NPROC_PER_NODE=)(\d+)", command)
        assert set(told) <= {str(advice.ranks)}, command
        programs = {"mpirun", "torchrun", "numactl", "srun", "accelerate"}
        assert programs.intersection(shlex.split(command)) <= here, command
    assert plan.processes_per_node == advice.ranks
    assert plan.threads_per_process + plan.ccl_workers == advice.threads + advice.ccl_workers
    assert advice.ranks * advice.threads <= max(1, len(facts.topology.allowed_cores))


@pytest.mark.parametrize(
    ("name", "launchers"),
    [(name, "Intel MPI") for name in MACHINES]
    + [(name, one) for name in ("eight sockets", "one core") for one in ("none", "Open MPI")],
)
def test_one_page_has_one_answer(name: str, launchers: str) -> None:
    agrees(replace(changed(**MACHINES[name]), launchers=LAUNCHERS[launchers], environment={}))


def recorded(shape: dict[str, Any]) -> HostFacts:
    facts = probe(machine(None, **shape, record={"packages": TODAY}))
    return replace(facts, launchers=(TORCHRUN,))


@every_row("shape", RECORDED, ids=str)
def test_built_machines_have_one_answer(shape: dict[str, Any]) -> None:
    agrees(recorded(shape))


@pytest.mark.parametrize("name", NAMES)
def test_recorded_machines_have_one_answer(name: str, tmp_path: Any) -> None:
    agrees(probe(open_recording(name, tmp_path)))


@every_row(("nodes", "batch"), [(1, 1), (1, 8), (2, 6), (2, 7)])
@every_row("shape", [SIXTEEN_SOCKETS, FAST_AND_SLOW, UNEQUAL], ids=str)
def test_ranks_divide_the_batch(shape: dict[str, Any], nodes: int, batch: int) -> None:
    """Sixteen sockets of one core: 8 samples "cannot be divided over 16 ranks"."""
    facts = recorded(shape)
    advice = advise(facts, batch=batch * nodes, nodes=nodes)
    assert batch % advice.ranks == 0
    job = Workload.script(["run_qa.py", "--output_dir", "o"], global_batch_size=batch * nodes)
    hosts = parse_hosts("one,two") if nodes == 2 else ()
    (file, *_) = emit(None, "torchrun", facts=facts, workload=job, hosts=hosts)
    assert f"{advice.ranks} ×" in file.text or advice.ranks == 1


@pytest.mark.parametrize(
    ("shape", "ranks", "threads", "why"),
    [
        ({"sockets": 2, "cores": 28, "smt": 2}, 2, 28, "one rank per socket"),
        ({"sockets": 16, "cores": 1, "nodes": 1}, 1, 16, "one rank"),
        ({"sockets": 8, "cores": 1, "nodes": 4}, 4, 2, "one rank per NUMA node"),
        ({"cores": 14, "smt": 2, "e_cores": 8}, 1, 6, "one rank on the 6 fast ones of 14 cores"),
        ({"sockets": 4, "cores": [2, 2, 2, 1]}, 1, 7, "one rank"),
    ],
)
def test_the_advice_says_why(shape: dict[str, Any], ranks: int, threads: int, why: str) -> None:
    advice = advise(recorded(shape))
    assert (advice.ranks, advice.threads, advice.why) == (ranks, threads, why)


def test_without_a_launcher_of_several_ranks_there_is_no_command() -> None:
    facts = replace(changed(), launchers=(), packages=())
    assert advised(facts).ranks > 1
    assert advised_launch(facts) is None


def test_oneccl_takes_a_core_of_each_rank() -> None:
    packages = tuple(
        Package(name=name, version=version, location=None) for name, version in IPEX_ERA.items()
    )
    facts = replace(changed(), packages=packages, launchers=(INTEL_MPI,))
    command = advised_launch(facts, "train.py --ddp_backend ccl", ccl=True) or ""
    assert f"OMP_NUM_THREADS={advised(facts).threads - 1} CCL_WORKER_COUNT=1" in command
