"""How the ranks of a plan are started: variables, commands, launchers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from golden_texts import Golden

from cputune import Plan
from cputune.host.hub import hub_reachable
from cputune.plans.delivery.environment import OFFLINE, base_environment, plan_variables
from cputune.ranks.engines import FromHere, held_port, local_ranks, ssh_handing_on, write
from cputune.ranks.supervisor_main import RankCommand
from cputune.records.steps import HostLost

ONE = Plan(processes_per_node=1, threads_per_process=2, cpus=((0, 1),))
TWO = Plan(processes_per_node=2, threads_per_process=1, cpus=((0,), (1,)), precision="bf16")
AS_FOUND = Plan(processes_per_node=1, threads_per_process=2, cpus=((0, 1),), as_found=True)
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


def started(plan: Plan, base: Mapping[str, str], *, fork: bool = True) -> list[RankCommand]:
    """How the ranks of a plan start."""
    environment = {**base, **plan_variables(plan, {})}
    with closing(held_port()) as holder:
        return local_ranks(plan, ("t.py", "-x"), environment, holder, fork=fork)


def environments(plan: Plan, base: Mapping[str, str]) -> list[dict[str, str]]:
    """The environments in which they do."""
    return [rank["env"] for rank in started(plan, base)]


def test_nothing_of_the_outer_environment_overrides_a_plan() -> None:
    base = base_environment(OUTER, ONE, plan_variables(ONE, {}), offline=False)
    assert base == {"PATH": "/usr/bin", "HF_HOME": "/data/hf"}
    (variables,) = environments(ONE, base)
    assert variables["OMP_NUM_THREADS"] == "2"
    assert "RANK" not in variables, "a job of one rank has no rank numbers"
    assert "MASTER_PORT" not in variables


def test_what_is_read_at_load_is_in_the_environment_that_forks_share() -> None:
    preload = ("/lib/libjemalloc.so.2", "/lib/libiomp5.so")
    plan = replace(ONE, allocator="jemalloc", openmp="libiomp5", preload=preload)
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


def test_ranks_are_bound_and_the_baseline_is_not() -> None:
    ranks = started(TWO, {})
    assert [rank["cpus"] for rank in ranks] == [[0], [1]]
    assert [rank["argv"] for rank in ranks] == [["t.py", "-x"]] * 2
    (free,) = started(AS_FOUND, {}, fork=False)
    assert free.get("cpus") is None


def test_what_is_written_for_a_launch_is_read_by_no_other(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "rank.py", "x")
    folder = ssh_handing_on(tmp_path, ["A"], ["ssh", "-p", "22"], {"PATH": ""})
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.py")}
    assert modes == {"rank.py": 0o600}
    assert (Path(folder) / "ssh").stat().st_mode & 0o777 == 0o700


def test_a_host_is_lost_for_the_last_reason_that_names_it(golden: Golden) -> None:
    reach = SimpleNamespace(explain=lambda node, status, line: (f"{node.name}: {line}", None))
    nodes = [SimpleNamespace(name=name) for name in ("alpha", "beta")]
    tail = "beta: starting\nbeta: waiting\nssh: connect to beta: Connection refused\nalpha: bye"
    found = FromHere(reach).reason_of_end(
        SimpleNamespace(nodes=nodes),
        [{"rank": 0, "status": 0, "tail": "alpha: lost connection"}, {"status": 1, "tail": tail}],
    )
    assert isinstance(found, HostLost)
    golden(str(found))


def test_every_rank_gets_its_numbers_and_the_plan() -> None:
    base = base_environment(OUTER, TWO, plan_variables(TWO, {}), offline=False)
    second = environments(TWO, base)[1]
    numbers = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    expected = {**numbers, "MASTER_ADDR": "127.0.0.1", **TWO.environment()}
    assert second["MASTER_PORT"]
    assert {name: second[name] for name in expected} == expected
