"""How the ranks of a plan are started: variables, commands, launchers."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cputune.carrier.command import carried
from cputune.carrier.environment import OFFLINE, base_environment, hub_reachable, plan_variables
from cputune.facts import HostFacts
from cputune.inside import CPUS_VARIABLE
from cputune.plan import Plan
from cputune.ranks import commands
from cputune.ranks.commands import held_port
from cputune.steps import Infeasible
from cputune.workload import Workload

ONE = Plan(processes_per_node=1, threads_per_process=2, cpus=((0, 1),))
TWO = Plan(processes_per_node=2, threads_per_process=1, cpus=((0,), (1,)), precision="bf16")
AS_FOUND = Plan(processes_per_node=1, threads_per_process=2, cpus=((0, 1),), as_found=True)
CCL = Plan(
    processes_per_node=2,
    threads_per_process=2,
    ccl_workers=1,
    backend="ccl",
    cpus=((1, 2), (4, 5)),
    ccl_cpus=((0,), (3,)),
)

OUTER = {
    "PATH": "/usr/bin",
    "RANK": "3",
    "WORLD_SIZE": "8",
    "PMI_RANK": "1",
    "OMP_NUM_THREADS": "7",
    "KMP_AFFINITY": "compact",
    "ACCELERATE_USE_FSDP": "true",
    "CCL_WORKER_COUNT": "4",
    "HF_HOME": "/data/hf",
    "LD_PRELOAD": "/lib/libshim.so:/lib/libtcmalloc.so.4",
    "MALLOC_CONF": "dirty_decay_ms:0",
}


def local_ranks(plan: Plan, base: Mapping[str, str]) -> list[dict[str, str]]:
    """The environments in which the ranks of a plan start."""
    variables = plan_variables(plan, {})
    ranks = commands.local_ranks(plan, ["t.py"], base, variables, fork=True, port=4321)
    return [rank["env"] for rank in ranks]


def test_nothing_of_the_outer_environment_overrides_a_plan() -> None:
    base = base_environment(OUTER, ONE, plan_variables(ONE, {}), offline=False)
    assert base == {"PATH": "/usr/bin", "HF_HOME": "/data/hf"}
    (variables,) = local_ranks(ONE, base)
    assert variables["OMP_NUM_THREADS"] == "2"
    assert "RANK" not in variables, "a job of one rank has no rank numbers"
    assert "MASTER_PORT" not in variables


def test_every_rank_gets_its_numbers_and_the_plan() -> None:
    base = base_environment(OUTER, TWO, plan_variables(TWO, {}), offline=False)
    second = local_ranks(TWO, base)[1]
    expected = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4321",
        **TWO.environment(),
    }
    assert {name: second[name] for name in expected} == expected


def test_as_found_leaves_the_environment_as_it_is() -> None:
    base = base_environment(OUTER, AS_FOUND, plan_variables(AS_FOUND, {}), offline=False)
    assert local_ranks(AS_FOUND, base) == [OUTER]


def test_what_is_read_at_load_is_in_the_environment_that_forks_share() -> None:
    plan = Plan(
        processes_per_node=1,
        threads_per_process=2,
        cpus=((0, 1),),
        allocator="jemalloc",
        openmp="libiomp5",
        preload=("/lib/libjemalloc.so.2", "/lib/libiomp5.so"),
    )
    base = base_environment(OUTER, plan, plan_variables(plan, {}), offline=False)
    assert base["LD_PRELOAD"] == "/lib/libjemalloc.so.2:/lib/libiomp5.so"
    assert base["MALLOC_CONF"] == plan.environment()["MALLOC_CONF"]
    assert base["KMP_BLOCKTIME"] == "1"
    assert "OMP_NUM_THREADS" not in base


def test_without_the_hub_its_clients_look_into_their_caches_only() -> None:
    base = base_environment({"HF_HUB_OFFLINE": "0"}, ONE, plan_variables(ONE, {}), offline=True)
    assert base == {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@pytest.mark.parametrize("name", OFFLINE)
def test_a_hub_that_the_user_turned_off_is_not_asked(name: str) -> None:
    assert not hub_reachable({name: "1"})


def test_a_hub_that_refuses_is_not_reachable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert not hub_reachable({"HF_ENDPOINT": endpoint})


def test_ranks_are_bound_and_a_run_as_found_is_not() -> None:
    ranks = commands.local_ranks(TWO, ["train.py", "-x"], {}, {}, fork=True, port=1)
    assert [rank["cpus"] for rank in ranks] == [[0], [1]]
    assert [rank["argv"] for rank in ranks] == [["train.py", "-x"]] * 2
    (free,) = commands.local_ranks(AS_FOUND, ["train.py"], {}, {}, fork=False, port=1)
    assert free["cpus"] is None
    assert free["argv"][-1] == "train.py"


def test_a_global_batch_that_cannot_be_divided_is_infeasible() -> None:
    job = Workload.script(["train.py"], global_batch_size=7)
    with pytest.raises(ValueError, match="cannot be divided over 2 ranks"):
        carried(job, TWO, {})
    assert carried(job, AS_FOUND, {}).force is None


@pytest.fixture
def oneccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The layout of the real wheel: module, env/setvars.sh, Intel MPI beside it."""
    module = tmp_path / "oneccl_bindings_for_pytorch"
    (module / "env").mkdir(parents=True)
    (module / "__init__.py").write_text("raise SystemExit('imported')\n")
    (module / "env" / "setvars.sh").write_text(
        'here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"\n'
        'echo "noise on stdout"\n'
        'export CCL_ROOT="$here" I_MPI_ROOT="$here" PATH="$here/bin:$PATH" ODD="two\nlines"\n'
    )
    (module / "bin").mkdir()
    mpirun = module / "bin" / "mpirun"
    mpirun.write_text("#!/bin/sh\n")
    mpirun.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    return module


def test_oneccl_ranks_are_started_by_the_mpirun_of_its_setvars(
    oneccl: Path, hostless: HostFacts
) -> None:
    way = carried(Workload.script(["t.py"], global_batch_size=8), CCL, {})
    base = base_environment({"PATH": os.environ["PATH"]}, CCL, way.variables, offline=False)
    variables = {
        **way.variables,
        **commands.trial_variables("/s", Path("/scratch"), "/kernels", way.force),
    }
    (job,) = commands.mpi_ranks(CCL, ["t.py", "--x"], base, variables, hostless, port=4321)
    assert job["argv"][:5] == [str(oneccl / "bin" / "mpirun"), "-n", "2", "-ppn", "2"]
    assert job["argv"][-2:] == ["t.py", "--x"]
    env = job["env"]
    assert env["I_MPI_PIN_DOMAIN"] == "[0x6,0x30]"
    assert env["CCL_WORKER_COUNT"] == "1"
    assert env["CCL_WORKER_AFFINITY"] == "0,3"
    assert env["CCL_ROOT"] == str(oneccl)
    assert env["ODD"] == "two\nlines"
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("127.0.0.1", "4321")
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & env.keys()
    assert json.loads(env[CPUS_VARIABLE]) == [[1, 2], [4, 5]]


def test_without_bindings_or_intel_mpi_oneccl_is_infeasible(
    hostless: HostFacts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(Infeasible, match="bindings for PyTorch are not installed"):
        commands.mpi_ranks(CCL, ["t.py"], {}, {}, hostless, port=1)
    with pytest.raises(Infeasible, match="Intel MPI"):
        commands.intel_mpirun({"PATH": str(tmp_path)}, hostless)


@pytest.fixture
def hostless(tmp_path: Path) -> HostFacts:
    from hosts.builder import machine

    import cputune

    return cputune.probe(machine(tmp_path / "machine", sockets=2, cores=4))


def test_a_held_port_is_given_to_nobody_else_but_rank_0() -> None:
    with held_port() as holder, socket.socket() as rank_0:
        port = holder.getsockname()[1]
        rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rank_0.bind(("127.0.0.1", port))
        rank_0.listen()
