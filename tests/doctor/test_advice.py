"""One advice: whatever a page, a plan or a launch says of ranks and threads is the same."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from clean_machine import changed
from doctor_machines import INTEL_MPI, MACHINES, OPEN_MPI, RECORDED
from hosts.builder import machine
from hosts.recordings import NAMES, open_recording
from rows import every_row
from stacks import TODAY

from cputune import HostFacts, diagnose, probe
from cputune.doctor.variables import advised, advised_launch
from cputune.host.facts import Launcher
from cputune.plans.layout import guide_plan

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


def test_without_a_launcher_of_several_ranks_there_is_no_command() -> None:
    facts = replace(changed(), launchers=(), packages=())
    assert advised(facts).ranks > 1
    assert advised_launch(facts) is None
