"""Fixes fit together: who pastes them, and those of what then comes up, has none left."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from clean_machine import CLEAN, IPEX_ERA, changed
from doctor_machines import INTEL_MPI, MACHINES, OPEN_MPI, RECORDED, VARIABLES
from hosts.builder import machine
from hypothesis import given, settings, strategies as st
from stacks import TODAY

from cputune import HostFacts, diagnose, probe
from cputune.doctor.checkfile import check_file
from cputune.doctor.variables import advised

STACKS: dict[str, dict[str, Any]] = {
    "today": {},
    "IPEX era": {"packages": IPEX_ERA, "launchers": (INTEL_MPI,)},
    "Open MPI": {"launchers": (OPEN_MPI,)},
    "no packages": {"packages": {p.name: None for p in CLEAN.packages}, "launchers": ()},
}


def settings_of(script: str) -> dict[str, str | None]:
    """What the lines of a command set, and (None) unset."""
    found: dict[str, str | None] = {}
    for line in script.splitlines():
        if "sudo" in line or "|" in line:
            continue
        word, *rest = shlex.split(line, comments=True) or [""]
        if word == "export":
            found.update((name, text) for name, _, text in (part.partition("=") for part in rest))
        elif word == "unset":
            found.update(dict.fromkeys(rest))
    return found


MOST_ROUNDS = 4


def fixes(facts: HostFacts) -> dict[str, str | None]:
    """What the commands of all findings set; of two, that of the worse finding."""
    found: dict[str, str | None] = {}
    for finding in diagnose(facts).findings:
        found = {**settings_of(finding.command or ""), **found}
    return found


def sourced(facts: HostFacts) -> HostFacts:
    """The machine as it is after its fixes were pasted, and those of what then came up."""
    for _ in range(MOST_ROUNDS):
        merged = {**facts.environment, **fixes(facts)}
        environment = {name: text for name, text in merged.items() if text is not None}
        words = environment.get("LD_PRELOAD", "").replace(":", " ").split()
        missing = tuple(path for path in facts.preload_missing if path in words)
        facts = replace(facts, environment=environment, preload_missing=missing)
    return facts


def with_variables(facts: HostFacts, variables: Mapping[str, str]) -> HostFacts:
    changed_facts = changed(facts, environment=variables)
    words = changed_facts.environment.get("LD_PRELOAD", "").replace(":", " ").split()
    return replace(changed_facts, preload_missing=tuple(w for w in words if w == "/gone.so"))


machines = st.builds(
    lambda machine, stack: changed(**{**MACHINES[machine], **STACKS[stack]}),
    st.sampled_from(list(MACHINES)),
    st.sampled_from(list(STACKS)),
)
variables = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(values) for name, values in VARIABLES.items()}
)


@settings(max_examples=40, deadline=None)
@given(machines, variables)
def test_fixes_come_to_an_end(machine: HostFacts, variables: dict[str, str]) -> None:
    after = sourced(with_variables(machine, variables))
    assert fixes(after) == {}


@settings(max_examples=80, deadline=None)
@given(machines, variables)
def test_no_two_findings_set_a_variable_differently(
    machine: HostFacts, variables: dict[str, str]
) -> None:
    """Whoever pastes the commands in another order ends with the same variables."""
    found: dict[str, set[str | None]] = {}
    for finding in diagnose(with_variables(machine, variables)).findings:
        for name, text in settings_of(finding.command or "").items():
            found.setdefault(name, set()).add(text)
    assert {name: texts for name, texts in found.items() if len(texts) > 1} == {}


def bare(machine: str, stack: str) -> HostFacts:
    facts = changed(**{**MACHINES[machine], **STACKS[stack]})
    return replace(facts, environment={})


@pytest.mark.parametrize(
    ("machine", "stack"),
    [(machine, "IPEX era") for machine in MACHINES]
    + [
        (machine, one) for machine in ("eight sockets", "one core") for one in ("today", "Open MPI")
    ],
)
def test_our_check_of_files_takes_the_launch_that_was_advised(machine: str, stack: str) -> None:
    """threads-one exported all 112 cores beside advice for two ranks."""
    after = sourced(bare(machine, stack))
    launch = f"MASTER_ADDR=10.0.0.7 mpirun -n {advised(after).ranks} python train.py --use_cpu"
    codes = {finding.code for finding in check_file(launch, "run.sh", after)}
    assert not codes & {"ranks-oversubscribed", "threads-one", "ranks-alone"}


@pytest.mark.parametrize(
    ("shape", "packages"),
    [(shape, IPEX_ERA) for shape in RECORDED] + [(RECORDED[0], TODAY), (RECORDED[-1], {})],
)
def test_recorded_machines_end_clean(shape: dict[str, Any], packages: dict[str, str]) -> None:
    facts = probe(machine(None, **shape, record={"packages": packages}))
    after = sourced(facts)
    assert fixes(after) == {}
    variables = f"MASTER_ADDR=10.0.0.7 OMP_NUM_THREADS={advised(after).threads}"
    launch = f"{variables} mpirun -n {advised(after).ranks} python train.py --use_cpu"
    condemned = {finding.code for finding in check_file(launch, "run.sh", after)}
    assert "ranks-oversubscribed" not in condemned
