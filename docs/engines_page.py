"""The table of ``docs/clusters.md``: what each engine was seen to do, by the test that ran it.

    pytest -m "nodes or matrix" tests/nodes --junitxml=FILE
    python docs/engines_page.py FILE...     # keep how they ended, then `make doc`

``docs/engines.json`` is what is kept: how each test ended, and on which day. ``make test-nodes``
does both. ``tests/test_docs_engines.py`` fails for a test that has another name by now, or failed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
RECORD = HERE / "engines.json"
HEADING = "## What was run\n"
COLUMNS = (
    "doctor", "tune", "confirmation", "lost host", "killed tuner", "emitted launch", "verify",
)  # fmt: skip

_REACH, _TUNE = "tests/nodes/test_nodes_reach.py", "tests/nodes/test_tune_engines.py"
_LAUNCH, _VERIFY = "tests/nodes/test_emitted_launches.py", "tests/nodes/test_verified_launches.py"
_TUNED = f"{_TUNE}::test_a_trial_is_a_launch_of_the_engine_and_the_best_is_confirmed"
_LOST = f"{_TUNE}::test_a_host_that_is_cut_off_is_named_and_ends_the_study"
_KILLED = f"{_TUNE}::test_nothing_stays_of_a_tuner_that_is_killed"

NOT = ("not run",)

Cell = tuple[str, ...] | str
"""Tests; or, as one text, why there is none."""


def _tuned(engine: str) -> tuple[Cell, ...]:
    """What every engine that can be had is tried with."""
    lost = (f"{_LOST}[{engine}]",)
    tuned = (f"{_TUNED}[{engine}]",)
    return tuned, tuned, lost, (f"{_KILLED}[{engine}]",)


def _mpi(engine: str) -> tuple[Cell, ...]:
    """An MPI whose mpirun starts trials."""
    return (
        (f"{_REACH}::test_hosts_are_reached_by_an_mpirun[{engine}]",),
        *_tuned(engine),
        (f"{_LAUNCH}::test_mpi_trains_a_recipe_to_its_end[{engine}-mpirun]",),
        (f"{_VERIFY}::test_what_mpi_starts[{engine}-mpirun]",),
    )


_NO_INPUT = "its mpirun hands no input on: ssh starts trials"
_SBATCH = (
    "tests/nodes/test_slurm_nodes.py::test_the_batch_script_trains_to_its_end",
    "tests/nodes/test_slurm_nodes.py::test_a_tune_means_its_allocation_and_its_plan_runs_as_a_job",
)
_SUBMITTED = (f"{_VERIFY}::test_a_batch_job_of_two_nodes_if_that_is_asked_for",)

ROWS: dict[str, tuple[Cell, ...]] = {
    "ssh, `torchrun.sh`": (
        ("tests/nodes/test_nodes_doctor.py::test_what_was_planted_is_found",),
        *_tuned("ssh"),
        (f"{_LAUNCH}::test_torchrun_trains_a_recipe_to_its_end",),
        (f"{_VERIFY}::test_what_torchrun_starts",),
    ),
    "srun in an allocation, `slurm.sh`": (
        (f"{_REACH}::test_an_allocation_needs_no_names",),
        *_tuned("srun"),
        _SBATCH,
        _SUBMITTED,
    ),
    "MPICH, `mpirun.sh`": _mpi("mpich"),
    "Open MPI 4, `mpirun.sh`": _mpi("openmpi4"),
    "Intel MPI, `mpirun.sh`": _mpi("impi"),
    "Open MPI 5, `mpirun.sh`": (
        *([_NO_INPUT] * 5),
        (f"{_LAUNCH}::test_mpi_trains_a_recipe_to_its_end[openmpi5-mpirun]",),
        (f"{_VERIFY}::test_what_mpi_starts[openmpi5-mpirun]",),
    ),
}

_HEAD = """
Each cell says how its tests in `make test-nodes` ended, and on which day. The hosts are network
namespaces of one machine, with an sshd each and a Slurm of two nodes. `docs/engines.json` names
the tests. Made by `make doc`.
"""


def clusters_page() -> str:
    """The page as it is, with the table made anew."""
    page = (HERE / "clusters.md").read_text(encoding="utf-8")
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    return page.partition(HEADING)[0] + HEADING + table(record)


def table(ended: Mapping[str, Sequence[str]]) -> str:
    """The table, then what was not tried and why."""
    reasons: dict[str, list[str]] = {}
    lines = [
        f"| engine | {' | '.join(COLUMNS)} |",
        "|" + "---|" * (len(COLUMNS) + 1),
    ]
    for engine, cells in ROWS.items():
        shown = []
        for column, cell in zip(COLUMNS, cells, strict=True):
            if isinstance(cell, str):
                shown.append("not tried")
                reasons.setdefault(f"{engine}: {cell}", []).append(column)
            else:
                shown.append(_outcome([ended.get(test, NOT) for test in cell]))
        lines.append(f"| {engine} | {' | '.join(shown)} |")
    parts = [_HEAD, "\n".join(lines), "\nNot tried, and why:\n"]
    parts += [f"- {reason} ({', '.join(columns)})" for reason, columns in reasons.items()]
    return "\n".join(parts) + "\n"


def _outcome(results: Sequence[Sequence[str]]) -> str:
    """How the tests of a cell ended, with the day of the one that was run first."""
    outcomes = ", ".join(sorted({outcome for outcome, *_ in results}))
    days = sorted(day for _, *days in results for day in days)
    return f"{outcomes} ({days[0]})" if days else outcomes


def tests() -> set[str]:
    """All that the table names."""
    cells = [cell for row in ROWS.values() for cell in row if not isinstance(cell, str)]
    return {test for cell in cells for test in cell}


def results(report: Path) -> dict[str, str]:
    """How each test of a JUnit report of pytest ended, by its id."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        path = case.attrib["classname"].replace(".", "/") + ".py"
        kinds = {child.tag for child in case} - {"properties", "system-out", "system-err"}
        word = "failed" if kinds & {"failure", "error"} else "skipped" if kinds else "passed"
        found[f"{path}::{case.attrib['name']}"] = word
    return found


def main(reports: list[str]) -> None:
    """Keep how the tests of the table ended, those of earlier reports too where they have none."""
    ended = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for report in reports:
        today = time.strftime("%Y-%m-%d")
        ended.update({test: [word, today] for test, word in results(Path(report)).items()})
    kept = [f" {json.dumps(t)}: {json.dumps(ended[t])}" for t in sorted(tests() & ended.keys())]
    RECORD.write_text("{\n" + ",\n".join(kept) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
