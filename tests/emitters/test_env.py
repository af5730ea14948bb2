"""``emit --format env``: what any POSIX shell evaluates, and nothing more."""

from __future__ import annotations

import json
import sys

import pytest
from emit_machines import Case, one_socket, script_workload, two_sockets_smt
from in_process import ran

from cputune.emitters import PRINTED_FORMATS, Emission, emit
from cputune.emitters.job import make_job

PRINT = "import json, os; print(json.dumps(dict(os.environ)))"


def evaluated(shell: str, text: str, **before: str) -> dict[str, str]:
    answer = ran(
        [shell, "-c", f'eval "$1"; exec {sys.executable} -c "{PRINT}"', shell, text],
        env={"OMP_NUM_THREADS": "99", "MKL_NUM_THREADS": "99", "LD_PRELOAD": "", **before},
        check=True,
    )
    found: dict[str, str] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("case", [one_socket(), two_sockets_smt()], ids=["gloo", "ccl"])
def test_a_shell_evaluates_it(shell: str, case: Case) -> None:
    (file,) = emit(case.result, "env", facts=case.facts, nodes=1)
    text = "\n".join(line for line in file.text.splitlines() if "LD_PRELOAD=" not in line)
    seen = evaluated(shell, text, RANK="1")
    plan = case.result.best.plan
    for name, value in make_job(
        case.result, Emission(facts=case.facts, nodes=1)
    ).environment.items():
        assert name == "LD_PRELOAD" or seen[name] == value
    assert "MKL_NUM_THREADS" not in seen
    assert (seen["RANK"], seen["WORLD_SIZE"]) == ("1", str(plan.processes_per_node))


def test_what_variables_do_not_carry_is_said() -> None:
    case = one_socket()
    (file,) = emit(case.result, "env", facts=case.facts)
    assert "variables alone do not carry the whole plan" in file.notes[0]
    workload = script_workload("--do_train")
    (file,) = emit(case.result, "env", facts=case.facts, workload=workload)
    assert "# Local rank 1 is for CPUs 4-7 (taskset -c)." in file.text


def test_it_is_no_launch() -> None:
    case = one_socket()
    names = {file.name for file in emit(case.result, "all", facts=case.facts)}
    assert "env" in PRINTED_FORMATS
    assert "env.sh" not in names
