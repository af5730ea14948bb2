"""What variables say about CPUs, ranks and threads, as their programs read it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clean_machine import CLEAN, IPEX_ERA, changed
from rows import every_row

from cputune import HostFacts
from cputune.doctor.variables import (
    advised,
    is_true,
    job_nodes,
    lacks_torch,
    loads_intel_openmp,
    number,
    openmp_binders,
    pin_domains,
    preloaded,
    under_mpi,
    under_torchrun,
    value,
    without_gpu,
)


def env(**variables: str) -> HostFacts:
    return replace(CLEAN, environment=variables)


@every_row(
    ("text", "domains"),
    [
        ("[0x3,0xc]", ((0, 1), (2, 3))),
        ("[0x3,", None),
        ("-0x3]", None),
        ("[zz]", None),
        ("socket", None),
    ],
)
def test_masks_of_intel_mpi(text: str, domains: tuple[tuple[int, ...], ...] | None) -> None:
    assert pin_domains(env(I_MPI_PIN_DOMAIN=text)) == domains


@every_row(
    ("variables", "binders"),
    [
        ({}, []),
        ({"OMP_PROC_BIND": "false,close", "KMP_AFFINITY": "verbose,none"}, []),
        (
            {"OMP_PROC_BIND": "TRUE", "GOMP_CPU_AFFINITY": "0"},
            ["GOMP_CPU_AFFINITY", "OMP_PROC_BIND"],
        ),
        ({"KMP_AFFINITY": "compact"}, []),  # read by libiomp5 alone
        ({"KMP_AFFINITY": "compact", "LD_PRELOAD": "/opt/libiomp5.so"}, ["KMP_AFFINITY"]),
    ],
)
def test_variables_by_which_openmp_binds(variables: dict[str, str], binders: list[str]) -> None:
    assert openmp_binders(env(**variables)) == binders


@every_row(
    ("text", "count"), [("8", 8), ("8,2", 8), (" 4 ", 4), ("", None), ("x", None), ("-1", None)]
)
def test_numbers_are_read_as_openmp_does(text: str, count: int | None) -> None:
    assert number(env(A=text), "A") == count


def test_the_first_variable_with_a_number_counts() -> None:
    assert number(env(A="x", B="2", C="3"), "A", "B", "C") == 2
    assert (value(env(A=" a "), "A"), value(env(A=" "), "A"), value(env(), "A")) == (
        *("a", None, None),
    )
    assert (is_true(env(A="Yes"), "A"), is_true(env(A="0"), "A"), is_true(env(), "A")) == (
        *(True, False, False),
    )


def test_entries_of_a_preload_stand_between_blanks_and_colons() -> None:
    assert preloaded(env(LD_PRELOAD=":/a.so:/b.so /c.so")) == ["/a.so", "/b.so", "/c.so"]
    assert preloaded(env()) == []


@every_row(
    ("variables", "nodes"),
    [
        ({}, 1),
        ({"PET_NNODES": "2"}, 2),
        ({"SLURM_NNODES": "4"}, 4),
        ({"WORLD_SIZE": "5", "LOCAL_WORLD_SIZE": "2"}, 3),
        ({"WORLD_SIZE": "5"}, 1),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "0"}, 1),
        ({"LOCAL_WORLD_SIZE": "2"}, 1),
    ],
)
def test_machines_of_a_job(variables: dict[str, str], nodes: int) -> None:
    assert job_nodes(env(**variables)) == nodes


def test_who_has_started_a_process_is_read_from_its_variables() -> None:
    assert under_mpi(env(PMIX_RANK="0"))
    assert not under_mpi(env(RANK="0"))
    for name in ("TORCHELASTIC_RUN_ID", "PET_NNODES"):
        assert under_torchrun(env(**{name: "1"}))
    assert not under_torchrun(env(RANK="0"))


NO_PACKAGES = {"packages": {p.name: None for p in CLEAN.packages}}


@every_row(
    ("changes", "lacks"),
    [
        ({}, False),
        ({"packages": {"torch": None}}, True),
        ({"packages": {"torch": None}, "recorded": True}, True),
        (NO_PACKAGES, True),
        ({**NO_PACKAGES, "recorded": True}, False),
        ({**NO_PACKAGES, "python": None}, False),
    ],
)
def test_torch_is_known_to_lack(changes: dict[str, Any], lacks: bool) -> None:
    assert lacks_torch(changed(**changes)) is lacks


CPU_BUILD = replace(CLEAN.packages[0], version=None, build="cpu")


@every_row(
    ("torch", "accelerators", "without"),
    [
        ("2.13.0+cpu", ("nvidia",), True),
        (CPU_BUILD, None, True),
        ("2.13.0", (), True),
        ("2.13.0", ("nvidia",), False),
        ("2.13.0", None, False),
        (None, None, False),
    ],
)
def test_training_is_without_a_gpu(
    torch: Any, accelerators: tuple[str, ...] | None, without: bool
) -> None:
    facts = changed(packages={"torch": torch}, accelerators=accelerators)
    assert without_gpu(facts) is without


def test_condas_torch_runs_on_intels_openmp() -> None:
    assert not loads_intel_openmp(CLEAN)
    assert not loads_intel_openmp(changed(packages={"torch": None}))
    by_conda = replace(CLEAN.packages[0], installer="conda")
    assert loads_intel_openmp(changed(packages={"torch": by_conda}))


@every_row(
    ("asked", "packages", "fitting", "threads"),
    [
        ("4", IPEX_ERA, 4, 24),
        ("27", IPEX_ERA, 27, 1),
        ("28", IPEX_ERA, 1, 27),
        ("0", IPEX_ERA, 0, 28),
        ("4", {}, 0, 28),
        ("4", {"torch_ccl": "1.11"}, 4, 24),
        ("4", NO_PACKAGES["packages"], 4, 24),  # a recording without packages
    ],
)
def test_workers_leave_a_thread(
    asked: str, packages: dict[str, Any], fitting: int, threads: int
) -> None:
    facts = changed(packages=packages, environment={"CCL_WORKER_COUNT": asked})
    assert (advised(facts).ccl_workers, advised(facts).threads) == (fitting, threads)
