"""The pure parts of the real runner: environment, launch, gathering, judging."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cputune.carrier import environment
from cputune.facts import HostFacts
from cputune.inside import FORCE_VARIABLE
from cputune.plan import Plan
from cputune.ranks import judge, launch
from cputune.ranks.gather import Gather
from cputune.steps import Crashed, Infeasible, NoMeasurement, OutOfMemory
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


def test_nothing_of_the_outer_environment_overrides_a_plan() -> None:
    base = environment.base_environment(OUTER, ONE, offline=False, versions={})
    assert base == {"PATH": "/usr/bin", "HF_HOME": "/data/hf"}
    variables = environment.rank_environment(base, ONE, 0, 4321)
    assert variables["OMP_NUM_THREADS"] == "2"
    assert "RANK" not in variables, "a job of one rank has no rank numbers"
    assert "MASTER_PORT" not in variables


def test_every_rank_gets_its_numbers_and_the_plan() -> None:
    base = environment.base_environment(OUTER, TWO, offline=False, versions={})
    second = environment.rank_environment(base, TWO, 1, 4321)
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
    base = environment.base_environment(OUTER, AS_FOUND, offline=False, versions={})
    assert environment.rank_environment(base, AS_FOUND, 0, 4321) == OUTER


def test_what_is_read_at_load_is_in_the_environment_that_forks_share() -> None:
    plan = Plan(
        processes_per_node=1,
        threads_per_process=2,
        cpus=((0, 1),),
        allocator="jemalloc",
        openmp="libiomp5",
        preload=("/lib/libjemalloc.so.2", "/lib/libiomp5.so"),
    )
    base = environment.base_environment(OUTER, plan, offline=False, versions={})
    assert base["LD_PRELOAD"] == "/lib/libjemalloc.so.2:/lib/libiomp5.so"
    assert base["MALLOC_CONF"] == plan.environment()["MALLOC_CONF"]
    assert base["KMP_BLOCKTIME"] == "1"
    assert "OMP_NUM_THREADS" not in base


def test_without_the_hub_its_clients_look_into_their_caches_only() -> None:
    base = environment.base_environment({"HF_HUB_OFFLINE": "0"}, ONE, offline=True, versions={})
    assert base == {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@pytest.mark.parametrize("name", environment.OFFLINE)
def test_a_hub_that_the_user_turned_off_is_not_asked(name: str) -> None:
    assert not environment.hub_reachable({name: "1"})


def test_a_hub_that_refuses_is_not_reachable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert not environment.hub_reachable({"HF_ENDPOINT": endpoint})


def test_ranks_are_bound_and_a_run_as_found_is_not() -> None:
    ranks = launch.local_ranks(TWO, ["train.py", "-x"], {}, {}, fork=True, port=1)
    assert [rank["cpus"] for rank in ranks] == [[0], [1]]
    assert [rank["argv"] for rank in ranks] == [["train.py", "-x"]] * 2
    (free,) = launch.local_ranks(AS_FOUND, ["train.py"], {}, {}, fork=False, port=1)
    assert free["cpus"] is None
    assert free["argv"][-1] == "train.py"


def test_a_global_batch_that_cannot_be_divided_is_infeasible() -> None:
    job = Workload.script(["train.py"], global_batch_size=7)
    with pytest.raises(Infeasible, match="cannot be divided over 2 ranks"):
        launch.force_for(TWO, job)
    assert launch.force_for(AS_FOUND, job) is None


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
    base = environment.base_environment(
        {"PATH": os.environ["PATH"]}, CCL, offline=False, versions={}
    )
    force = launch.force_for(CCL, Workload.script(["t.py"], global_batch_size=8), bind=True)
    variables = launch.trial_variables("/s", Path("/scratch"), force)
    (job,) = launch.mpi_ranks(CCL, ["t.py", "--x"], base, variables, hostless, port=4321)
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
    assert '"cpus": [[1, 2], [4, 5]]' in env[FORCE_VARIABLE]


def test_without_bindings_or_intel_mpi_oneccl_is_infeasible(
    hostless: HostFacts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(Infeasible, match="bindings for PyTorch are not installed"):
        launch.mpi_ranks(CCL, ["t.py"], {}, {}, hostless, port=1)
    with pytest.raises(Infeasible, match="Intel MPI"):
        launch.intel_mpirun({"PATH": str(tmp_path)}, hostless)


@pytest.fixture
def hostless(tmp_path: Path) -> HostFacts:
    from hosts.builder import machine

    import cputune

    return cputune.probe(machine(tmp_path / "machine", sockets=2, cores=4))


def test_a_held_port_is_given_to_nobody_else_but_rank_0() -> None:
    with launch.held_port() as holder, socket.socket() as rank_0:
        port = holder.getsockname()[1]
        rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rank_0.bind(("127.0.0.1", port))
        rank_0.listen()


def step(number: int, *, seconds: float = 1.0, samples: int = 4, **more: Any) -> dict[str, Any]:
    return {"event": "step", "number": number, "seconds": seconds, "samples": samples, **more}


def test_a_step_of_the_job_is_its_slowest_rank_and_all_samples() -> None:
    gather = Gather(2)
    assert gather.add(0, step(1, seconds=1.0, loss=2.0, delayed=0.1)) is None
    whole = gather.add(1, step(1, seconds=1.5, loss=4.0, delayed=0.3))
    assert whole is not None
    assert (whole.seconds, whole.samples, whole.loss, whole.delayed_seconds) == (1.5, 8, 3.0, 0.3)


@given(st.permutations([(rank, number) for rank in range(3) for number in range(1, 4)]))
def test_ranks_may_tell_their_steps_in_any_order(order: list[tuple[int, int]]) -> None:
    gather = Gather(3)
    whole = [gather.add(rank, step(number, seconds=number)) for rank, number in order]
    assert sorted(s.seconds for s in whole if s is not None) == [1, 2, 3]


def test_the_short_batch_at_the_end_of_an_epoch_is_passed_over() -> None:
    gather = Gather(1)
    seen = [gather.add(0, step(n, samples=k)) for n, k in enumerate([8, 8, 3, 8, 3], start=1)]
    assert [s.samples if s else None for s in seen] == [8, 8, None, 8, None]


def test_batches_of_changing_size_are_still_seen() -> None:
    gather = Gather(1)
    seen = [gather.add(0, step(n, samples=20 - n)) for n in range(1, 9)]
    assert sum(s is not None for s in seen) >= 4


def state(plan: Plan, rank: int = 0, **changed: Any) -> Mapping[str, Any]:
    good = {
        "world_size": plan.world_size,
        "backend": plan.backend if plan.world_size > 1 else None,
        "threads": plan.threads_per_process,
        "affinity": list(plan.cpus[rank]),
        "dtype": {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[plan.precision],
        "allocator": plan.allocator,
        "openmp": "libgomp" if plan.openmp == "default" else plan.openmp,
        "ipex": plan.ipex,
        "mapped": list(plan.preload),
    }
    return {**good, **changed}


@pytest.mark.parametrize("plan", [ONE, TWO, AS_FOUND, CCL])
def test_ranks_that_see_the_plan_are_right(plan: Plan) -> None:
    assert judge.differences(plan, [state(plan, r) for r in range(plan.processes_per_node)]) == ()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"world_size": 1, "backend": None}, "ranks in the job: 1, the plan says 2"),
        ({"threads": 4}, "threads: 4, the plan says 1"),
        ({"affinity": [0, 1]}, "CPUs of rank 0: 0-1, the plan says 0"),
        ({"dtype": "float32"}, "forward pass in: float32, the plan says bfloat16"),
        ({"backend": "mpi"}, "backend: mpi, the plan says gloo"),
        ({"allocator": "tcmalloc"}, "allocator: tcmalloc, the plan says default"),
        ({"ipex": True}, "IPEX: on, the plan says off"),
    ],
)
def test_what_differs_is_said_with_both_values(changed: dict[str, Any], words: str) -> None:
    assert judge.differences(TWO, [state(TWO, 0, **changed), state(TWO, 1)]) == (words,)


def test_a_library_that_was_not_preloaded_is_seen() -> None:
    plan = Plan(
        processes_per_node=1,
        threads_per_process=1,
        cpus=((0,),),
        openmp="libiomp5",
        preload=("/opt/libiomp5.so",),
    )
    assert judge.differences(plan, [state(plan, mapped=[])]) == (
        "preloaded library: /opt/libiomp5.so is not mapped",
    )


def test_a_dtype_that_no_layer_showed_is_not_held_against_a_plan() -> None:
    assert judge.differences(TWO, [state(TWO, 0, dtype=None), state(TWO, 1)]) == ()


def failure(
    status: int, *, tail: str = "", errors: tuple[dict[str, str], ...] = (), kills: int | None = 0
) -> Exception:
    exits = [{"rank": 0, "status": status, "tail": tail}]
    return judge.failure(exits, errors, memory_kills=kills, steps=0, script="t.py")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (failure(-9, kills=1), OutOfMemory, "killed for memory"),
        (failure(137, kills=None), OutOfMemory, "killed for memory"),
        (failure(-9), Crashed, "killed from outside"),
        (failure(-11), Crashed, "SIGSEGV"),
        (failure(2), Crashed, "exit status 2"),
        (failure(0), NoMeasurement, "ended before its first step"),
        (failure(1, tail="... can't allocate memory: you tried"), OutOfMemory, "have memory"),
        (failure(1, errors=({"kind": "MemoryError", "text": ""},)), OutOfMemory, "MemoryError"),
        (
            failure(1, errors=({"kind": "EOFError", "text": "EOF when reading a line"},)),
            Crashed,
            "asks for input",
        ),
        (
            failure(1, errors=({"kind": "ValueError", "text": "no\nway"},)),
            Crashed,
            "ValueError: no",
        ),
        (
            failure(-9, kills=1, errors=({"kind": "RuntimeError", "text": "peer closed"},)),
            OutOfMemory,
            "killed for memory",
        ),
    ],
)
def test_failures_have_types_and_words(error: Exception, kind: type, words: str) -> None:
    assert type(error) is kind
    assert words in str(error)


def test_the_tail_is_short_enough_to_read() -> None:
    error = failure(1, tail="\n".join(str(n) for n in range(1000)))
    assert isinstance(error, Crashed)
    assert error.details is not None
    assert error.details.splitlines()[-1] == "999"
    assert len(error.details.splitlines()) == 40


@pytest.mark.parametrize(
    ("seen", "steps", "kind", "words"),
    [
        ([], 0, Infeasible, "no Trainer and no Accelerator was seen in t.py"),
        (["Accelerator", "Trainer"], 0, NoMeasurement, "--do_train"),
        (["Accelerator"], 0, NoMeasurement, "an Accelerator"),
        (["Trainer"], 3, NoMeasurement, "after 3 steps"),
    ],
)
def test_a_script_that_ends_too_soon_is_told_why(
    seen: list[str], steps: int, kind: type, words: str
) -> None:
    error = judge.early_end(seen, "t.py", steps)
    assert type(error) is kind
    assert words in str(error)
