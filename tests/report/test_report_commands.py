"""The commands of a result can be pasted: each word is one word, and a secret stays a variable."""

from __future__ import annotations

import shlex
from dataclasses import replace

from golden_texts import Golden
from report.result_cases import tuned
from tuner.fakes import SMALL

from cputune import TuneOptions
from cputune.host.facts import Launcher
from cputune.report.show import basis, launch_commands

OPEN_MPI = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect="openmpi4")


def test_a_file_of_any_name_is_one_word() -> None:
    for command in launch_commands("my results/a; b.json"):
        assert shlex.split(command)[-1] == "my results/a; b.json"


def test_what_narrowed_a_search_is_told(golden: Golden) -> None:
    asked = TuneOptions(fix={"precision": "bf16"}, keep="numbers", knobs=[], budget=3, resume=True)
    assert asked.narrowed == {"fix": {"precision": "bf16"}, "keep": "numbers"}
    search = dict(basis(replace(tuned(), asked=asked.narrowed)))["search"]
    golden(search)


def test_a_plan_over_hosts_is_launched_over_them(golden: Golden) -> None:
    with_mpi = replace(SMALL.facts, launchers=(OPEN_MPI,))
    (now, _) = launch_commands("cputune.json", 2, with_mpi)
    golden(now)
    (now, _) = launch_commands("cputune.json", 2, replace(SMALL.facts, launchers=()))
    golden(now)
