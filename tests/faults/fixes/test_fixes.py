"""Fixes are tested by effect: fault planted, fix typed as it is printed, then a Trainer trains.

All of them: ``make test-fixes``. Of the sample here the doctor is asked, and no Trainer is started.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from in_process import ran
from planted import FAULTS, Environment, Fault
from rows import every_row

DOCTOR = "cputune doctor --hosts none --json --fail-on never"
TRAINED_SECONDS = 240
SAMPLE = ("launch-left-over", "variable-refused", "threads-mkl", "ccl-affinity", "module-shadowed")


def shell(made: Environment, fault: Fault, *lines: str) -> subprocess.CompletedProcess[str]:
    """Run lines in a shell in which the fault is planted."""
    root = str(made.prefix.parent)
    exports = [
        f"export {k}={shlex.quote(v.replace('@', root))}" for k, v in fault.variables.items()
    ]
    script = "\n".join((*exports, fault.typed, *lines))
    return ran(
        ["bash", "-c", script],
        cwd=made.work,
        env=made.variables(),
        errors="replace",
        timeout=TRAINED_SECONDS,
    )


def fix(made: Environment, fault: Fault) -> str:
    """What the doctor prints for this fault: the commands of all findings with its code."""
    done = shell(made, fault, DOCTOR)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["findings"]
    assert fault.code in {finding["code"] for finding in found}, found
    commands = [f["command"] for f in found if f["code"] == fault.code and f["command"]]
    assert commands, "no fix is printed"
    return "\n".join(dict.fromkeys(commands))


@pytest.mark.fixes
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.code}-{fault.name}")
def test_after_the_fix_a_trainer_trains(fault: Fault, tmp_path: Path) -> None:
    made = Environment(tmp_path, fault)
    if fault.ends and os.environ.get("CURES_BEFORE"):
        before = shell(made, fault, f"timeout 60 {fault.launch}")
        assert '"trained"' not in before.stdout, "it trains with the fault in place"
    typed = fix(made, fault)
    done = shell(made, fault, typed, fault.launch)
    told = [line for line in done.stdout.splitlines() if line.startswith('{"trained"')]
    assert told, f"{typed}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    shown = json.loads(told[0])
    assert (shown["steps"], shown["ranks"]) == (2, 1)
    assert {name: shown[name] for name in fault.shows} == dict(fault.shows)


@every_row("code", SAMPLE)
def test_after_the_fix_the_doctor_finds_it_no_more(code: str, tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.code == code)
    made = Environment(tmp_path, fault)
    done = shell(made, fault, fix(made, fault), DOCTOR)
    assert fault.code not in {finding["code"] for finding in json.loads(done.stdout)["findings"]}
