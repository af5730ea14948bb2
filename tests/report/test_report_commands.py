"""The commands of a result can be pasted: each word is one word, and a secret stays a variable."""

from __future__ import annotations

import shlex
from dataclasses import replace

from golden_texts import Golden
from rows import every_row
from tuner.fakes import SMALL

from cputune.emitters.prepared import usual_format
from cputune.host.facts import Launcher
from cputune.report.show import launch_commands

OPEN_MPI = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect="openmpi4")


def test_a_file_of_any_name_is_one_word() -> None:
    for command in launch_commands("my results/a; b.json"):
        assert shlex.split(command)[-1] == "my results/a; b.json"


@every_row(
    ("ranks", "launchers", "variables", "usual"),
    [
        (1, (), {}, "torchrun"),
        (2, (), {}, "torchrun"),
        (1, (OPEN_MPI,), {}, "torchrun"),
        (2, (OPEN_MPI,), {}, "mpirun"),
        (2, (OPEN_MPI,), {"SLURM_NNODES": "2"}, "slurm"),
        (1, (), {"SLURM_JOB_NUM_NODES": "1"}, "slurm"),
        (2, (OPEN_MPI,), {"SLURM_MEM_PER_CPU": "1"}, "mpirun"),
    ],
)
def test_the_format_that_is_proposed_fits_the_ranks_and_the_place(
    ranks: int, launchers: tuple[Launcher, ...], variables: dict[str, str], usual: str
) -> None:
    facts = replace(SMALL.facts, launchers=launchers, environment=variables)
    assert usual_format(facts, ranks) == usual
    now, files = launch_commands("cputune.json", ranks, facts)
    assert f"--format {usual}" in (now if usual == "mpirun" else files)
    assert now.startswith("cputune run") is (ranks == 1)


def test_a_plan_over_hosts_is_launched_over_them(golden: Golden) -> None:
    with_mpi = replace(SMALL.facts, launchers=(OPEN_MPI,))
    (now, _) = launch_commands("cputune.json", 2, with_mpi)
    golden(now)
    (now, _) = launch_commands("cputune.json", 2, replace(SMALL.facts, launchers=()))
    golden(now)
