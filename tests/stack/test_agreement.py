"""Doctor and tuner say the same of every stack in the tables that fits."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rows import every_row
from stacks import machine

from cputune import HostFacts, Workload
from cputune.doctor.checks.launch import gloo_slow
from cputune.doctor.checks.versions import (
    ipex_ended,
    ipex_ignored,
    ipex_torch_mismatch,
    ipex_unasked,
    oneccl_torch_mismatch,
    oneccl_unused,
)
from cputune.host.facts import Launcher
from cputune.plans.knobs.backend import BACKEND
from cputune.plans.knobs.kernels import IPEX
from cputune.plans.knobs.record import Ask
from cputune.stack import Versions, load
from cputune.stack.fit import misfits
from cputune.stack.tables import DISTRIBUTIONS

STACK = load()
INTEL_MPI = Launcher(name="mpirun", path="/opt/mpirun", dialect="intelmpi")
TRAINER = Ask(workload=Workload(name="run_qa.py", argv=("run_qa.py",), framework="trainer"))
OWN_LOOP = Ask(workload=Workload(name="loop.py", argv=("loop.py",), framework="accelerate"))


SAMPLED = 40
"""One stack of so many is looked at by `make test`, each of them by `make nightly`."""

every_stack = pytest.mark.parametrize(
    "one_of", [SAMPLED, pytest.param(1, marks=[pytest.mark.matrix, pytest.mark.timeout(1800)])]
)


def fitting(one_of: int, *starts: Versions) -> Iterator[Versions]:
    """One in ``one_of`` of the transformers and accelerate of the tables that fit beside these."""
    order = random.Random(0)
    for start in starts:
        for transformers in STACK.transformers.read:
            for accelerate in STACK.accelerate.read:
                if order.random() * one_of >= 1:
                    continue
                stack = start.changed(transformers=transformers, accelerate=accelerate)
                if not misfits(stack):
                    yield stack


def facts_of(versions: Versions) -> HostFacts:
    found = {name: versions.get(name) for name in DISTRIBUTIONS}
    packages = {DISTRIBUTIONS[name]: str(version) for name, version in found.items() if version}
    return replace(machine(packages, python=None), launchers=(INTEL_MPI,))


@every_stack
def test_about_ipex(one_of: int) -> None:
    pairs = [
        Versions(torch=torch.version, ipex=ipex.version)
        for torch in STACK.torch
        for ipex in STACK.ipex_for(torch.version)
    ]
    met: Counter[tuple[bool, bool, frozenset[str]]] = Counter()
    for versions in fitting(one_of, *pairs):
        facts = facts_of(versions)
        for check in (ipex_torch_mismatch, ipex_ended):
            assert not list(check(facts)), versions.describe()
        said = {
            finding.code: finding.evidence
            for check in (ipex_ignored, ipex_unasked)
            for finding in check(facts)
        }
        trainer, own = (True in IPEX.choices(facts, ask).values for ask in (TRAINER, OWN_LOOP))
        assert ("ipex-ignored" in said) == (not trainer and not own), versions.describe()
        assert ("ipex-unasked" in said) == own, versions.describe()
        if "in every script" in said.get("ipex-unasked", ""):
            assert trainer, versions.describe()
        met[trainer, own, frozenset(said)] += 1
    assert sum(met.values()) > 30_000 / one_of * 0.8
    assert len(met) == 4  # each of the two frameworks uses it, or does not


@every_stack
def test_about_oneccl(one_of: int) -> None:
    torches = {row.version for row in STACK.torch}
    for bindings in STACK.oneccl:
        exact = bindings.torch.removeprefix("==")
        torches |= {type(bindings.version)(exact)} if "*" not in exact else set()
    pairs = [
        Versions(torch=torch, oneccl=bindings.version)
        for torch in sorted(torches)
        for bindings in STACK.built_for("oneccl", torch)
    ]
    assert {pair.oneccl for pair in pairs} == {row.version for row in STACK.oneccl}
    met: Counter[tuple[bool, bool]] = Counter()
    for versions in fitting(one_of, *pairs):
        facts = facts_of(versions)
        assert not list(oneccl_torch_mismatch(facts)), versions.describe()
        (unused,) = list(oneccl_unused(facts)) or [None]
        trainer, own = ("ccl" in BACKEND.choices(facts, ask).values for ask in (TRAINER, OWN_LOOP))
        assert (unused is None) == trainer, versions.describe()
        if unused is not None:
            assert ("scripts with an Accelerator can" in unused.evidence) == own
        assert bool(list(gloo_slow(facts))) == trainer, versions.describe()
        met[trainer, own] += 1
    assert set(met) == {(True, True), (True, False), (False, True), (False, False)}


@every_row(("number", "torch"), enumerate(row.version for row in STACK.torch))
def test_bindings_that_do_not_fit_are_refused_by_both(number: int, torch: object) -> None:
    """Each torch with a third of the bindings, its neighbours with the others."""
    for bindings in STACK.oneccl[number % 3 :: 3]:
        facts = facts_of(
            Versions(
                torch=torch,
                oneccl=bindings.version,
                transformers=STACK.era("ipex").versions["transformers"],
                accelerate=STACK.era("ipex").versions["accelerate"],
            )
        )
        refused = bool(list(oneccl_torch_mismatch(facts)))
        assert refused == ("ccl" not in BACKEND.choices(facts, TRAINER).values)
