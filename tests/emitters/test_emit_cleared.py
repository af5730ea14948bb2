"""Trials and emitted scripts clear the same variables."""

from __future__ import annotations

from pathlib import Path

import pytest
from emit_machines import one_socket
from in_process import ran
from test_emit_contract import SHELL_FORMATS, Launch, files_for

from cputune.emitters import shell
from cputune.plans.carrier.environment import CLEARED, base_environment

LISTED = [name.replace("*", "NAME") for group in CLEARED for name in group.names]
KEPT = {
    "HF_HOME": "/data/hf",
    "MKL_VERBOSE": "0",
    "NODE_NAME": "n1",
    "OMPI_MCA_btl": "tcp",
    "PETALS": "5",
    "RANKING": "1",
    "SLURM_JOB_ID": "7",
}


def outer() -> dict[str, str]:
    return {**dict.fromkeys(LISTED, ""), **KEPT}


def test_the_head_of_a_script_leaves_what_a_trial_leaves() -> None:
    seen = ran(
        ["bash", "-euo", "pipefail", "-c", shell.clear() + "env -0"],
        env={"PATH": "/usr/bin:/bin", **outer()},
        check=True,
    ).stdout.split("\0")
    variables = dict(pair.split("=", 1) for pair in seen if pair)
    own_of_bash = {"PATH", "PWD", "SHLVL", "_", "OLDPWD"}
    left = {k: v for k, v in variables.items() if k not in own_of_bash}
    plan = one_socket().result.best.plan
    planned = plan.environment()
    trial = base_environment(outer(), plan, planned, offline=False)
    assert left == {k: v for k, v in trial.items() if k not in planned}


@pytest.mark.parametrize("format", SHELL_FORMATS)
def test_no_script_lets_one_through(format: str, tmp_path: Path) -> None:
    _, seen = Launch(tmp_path).run(files_for(format), environment=outer())
    assert [name for name in LISTED if seen.get(name) == ""] == []
    assert {name: seen.get(name) for name in KEPT} == KEPT
