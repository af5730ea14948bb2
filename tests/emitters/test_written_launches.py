"""What a file says is what was judged: read as any file is, it has the launch that was written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from emit_machines import MACHINES, Case, one_socket, planned, script_workload
from rows import every_row

from cputune import EmittedFile, UsageError, emit
from cputune.doctor.checkfile import check_file
from cputune.emitters import FORMATS
from cputune.launch.launch import Launch
from cputune.launch.launchers.mpirun import DIALECTS
from cputune.launch.shell import read_shell
from cputune.launch.target import target_of

LAUNCHES = [
    *(("mpirun", dialect) for dialect in DIALECTS),
    *(("accelerate", dialect) for dialect in DIALECTS),
    *((name, "openmpi5") for name in ("torchrun", "slurm", "command")),
]


def alone() -> Case:
    """One process, on two cores of the machine."""
    case = one_socket()
    result = planned(case.result, processes_per_node=1, cpus=((0, 1),), backend="gloo")
    workload = script_workload("--output_dir", "my runs", "--lr", "1")
    return Case(case.facts, replace(result, workload=workload))


CASES = {**MACHINES, "alone": alone}


def written(case: Case, format: str, mpi: str) -> tuple[EmittedFile, ...]:
    options: dict[str, Any] = {"facts": case.facts, "mpi": mpi, **case.options}
    try:
        return emit(case.result, format, **options)
    except UsageError as error:
        if "no line says all" in str(error):
            pytest.skip("the plan needs files")
        raise


def filled(words: Iterable[str]) -> list[str]:
    """Words without what only running shows, ``$?`` for a reader."""
    plain = (re.sub(r"\$(?:\w+|\?)", "$", word) for word in words)
    return [word for word in plain if word not in ("$", "$@", "--nodelist=$")]


def meaning(launch: Launch) -> dict[str, object]:
    names = ("LD_PRELOAD", "OMP_NUM_THREADS", "ACCELERATE_MIXED_PRECISION", "CCL_WORKER_COUNT")
    return {
        "launcher": launch.launcher,
        "ranks": (launch.ranks, launch.machines, launch.several),
        "environment": {name: launch.environment.get(name) for name in names},
        "step": launch.step,
        "part": launch.part,
    }


@every_row(("format", "mpi"), LAUNCHES)
@every_row("machine", CASES)
def test_a_script_reads_as_what_was_judged(machine: str, format: str, mpi: str) -> None:
    file = written(CASES[machine](), format, mpi)[0]
    target = target_of(file.text)
    assert target == file.target
    found = read_shell(file.text, file.name, target.variables).launches
    assert len(found) == len(file.launches)
    for read, meant in zip(found, file.launches, strict=True):
        assert filled(read.words)[-len(meant.argv) :] == filled(meant.argv)
        assert meaning(read) == meaning(meant)
        assert read.cpus in (None, meant.cpus)
        # Of --no_python the reader counts the words of the next program too.
        for got, wanted in zip(read.given, meant.given, strict=False):
            assert got.name == wanted.name
            assert got.value == wanted.value or wanted.value.startswith("$")


@every_row("format", FORMATS)
@every_row("machine", CASES)
def test_nothing_that_starts_ranks_is_left_unjudged(machine: str, format: str) -> None:
    for file in written(CASES[machine](), format, "openmpi5"):
        try:
            check_file(file.text, file.name, CASES[machine]().facts)
        except UsageError:
            continue  # it starts nothing
        beside = "ockerfile" in file.name or file.name.startswith(("hosts.", "constraints."))
        assert file.launches or file.document is not None or beside
        if beside:
            found = check_file(file.text, file.name, CASES[machine]().facts)
            assert {one.code for one in found} <= {"file-package-ended"}
