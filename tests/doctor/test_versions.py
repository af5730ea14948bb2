"""Versions that fit and that do not; what is said of STACKS lies in tests/golden/stacks.txt."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clean_machine import words
from golden_texts import Golden
from rows import every_row
from stacks import IPEX_ERA, TODAY, machine

from cputune import UsageError
from cputune.doctor.checks import packages as beside, versions
from cputune.doctor.named_stack import judge_stack
from cputune.host.facts import Library
from cputune.stack.tables import short_name

CHECKS = (*versions.CHECKS, *beside.CHECKS)
BY_CODE = {check.code: check for check in versions.CHECKS}
GOLDEN = Path(__file__).parent.parent / "golden" / "stacks.txt"
ONECCL = {"torch": "2.8.0", "oneccl_bind_pt": "2.8.0"}
PAIR = {"torch": "2.6.0", "intel_extension_for_pytorch": "2.6.0"}
WITHOUT_IPEX = {k: v for k, v in IPEX_ERA.items() if k != "intel_extension_for_pytorch"}

STACKS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({**IPEX_ERA, "torch": "2.6.0"}, {}),
    ({**TODAY, "intel_extension_for_pytorch": "2.8.0"}, {}),
    ({"torch": "1.13.1", "intel_extension_for_pytorch": "1.12.100"}, {"python": "3.10.4"}),
    ({"torch": "1.12.1", "oneccl_bind_pt": "1.12.0"}, {"python": "3.10.4"}),
    ({**TODAY, "torch": "2.5.1"}, {}),
    ({"torch": "2.8.0", "transformers": "4.52.4", "accelerate": "1.7.0"}, {}),
    ({**TODAY, "accelerate": "1.0.1"}, {}),
    ({"torch": "2.13.0", "transformers": "5.23.0"}, {}),
    ({**IPEX_ERA, "transformers": "4.56.2"}, {}),
    ({**IPEX_ERA, "transformers": "4.31.0"}, {}),
    ({"torch": "1.13.1", "accelerate": "1.3.0"}, {"python": "3.10.4"}),
    ({"torch": "2.2.2", "numpy": "2.0.1"}, {}),
    ({"torch": "2.4.1", "accelerate": "0.33.0", "numpy": "2.0.1"}, {}),
    ({"transformers": "5.23.0", "accelerate": "1.15.0"}, {}),
    ({**IPEX_ERA, "accelerate": "1.8.1"}, {}),
    (IPEX_ERA, {}),
    ({"torch": "2.8.0", "oneccl_bind_pt": "2.8.0", "accelerate": "1.13.0"}, {}),
    ({"torch": "2.8.0", "oneccl_bind_pt": "2.8.0", "transformers": "5.1.0"}, {}),
    ({**TODAY, "torch": "2.13.0+cu130"}, {}),
    ({**TODAY, "nvidia-cublas-cu12": "12.8"}, {}),
    ({**TODAY, "torch": None}, {}),
    ({**TODAY, "torch": "rubbish"}, {}),
    ({**PAIR, "transformers": "4.52.4", "accelerate": "1.13.0"}, {}),
    ({"torch": "2.9.1", "intel_extension_for_pytorch": "2.9.10+xpu"}, {}),
    ({"torch": "1.13.1", "transformers": "4.28.1"}, {"python": "3.9.18"}),
    ({"torch": "1.9.0", "transformers": "3.5.0"}, {"python": "3.9.18"}),
    ({"torch": "2.8.0", "accelerate": "1.13.0"}, {}),
    ({**TODAY, "torch": "2.13.0+cpu"}, {}),
    ({**TODAY, "triton": "3.5"}, {}),
    ({**TODAY, "torch": "rubbish", "triton": "3.5"}, {}),
    ({**TODAY, "requests": None}, {}),
    ({"requests": None, **TODAY, "accelerate": None}, {}),
    ({"torch": "2.8.0", "intel_extension_for_pytorch": "2.8.0", "accelerate": "1.8.1"}, {}),
    ({"torch": "2.8.0", "intel_extension_for_pytorch": "2.8.0", "accelerate": "1.7.0"}, {}),
    ({**ONECCL, "transformers": "5.1.0", "accelerate": "1.12.0"}, {}),
    ({**ONECCL, "accelerate": "1.13.0"}, {}),
    ({**ONECCL, "transformers": "5.1.0", "accelerate": "1.13.0"}, {}),
    ({"torch": "2.9.1", "oneccl_bind_pt": "2.8.0"}, {}),
    ({**TODAY, "intel_extension_for_pytorch": "2.99.0"}, {}),
    ({"numpy": "2.0", "requests": "2", "transformers": "5.23.0"}, {}),
    ({**TODAY, "torch": "2.13.0+cu130", "nvidia-nccl": "1", "triton": "3"}, {}),
    ({}, {}),
    ({"numpy": "2.4.6"}, {}),
    ({**TODAY, "peft": "0.17.1"}, {}),
    ({**TODAY, "datasets": "2.15.0", "huggingface_hub": "1.31.0"}, {}),
    (TODAY, {}),
    ({"torch": "1.10.2", "transformers": "5.23.0"}, {}),
    ({**TODAY, "torch": "2.13.0+cu130"}, {"accelerators": ("nvidia",)}),
    ({**TODAY, "torch": "2.13.0+cu130"}, {"accelerators": None}),
    (TODAY, {"environment": {"ACCELERATE_USE_IPEX": "true", "CCL_WORKER_COUNT": "1"}}),
    (IPEX_ERA, {"environment": {"ACCELERATE_USE_IPEX": "true", "CCL_WORKER_COUNT": "1"}}),
    (TODAY, {"environment": {"CCL_WORKER_COUNT": "0"}}),
    ({"torch": "2.8.0", "transformers": "4.56.2", "accelerate": "1.10.1"}, {}),
    ({**TODAY, "oneccl_bind_pt": "2.8.0"}, {}),
    ({**IPEX_ERA, "accelerate": "1.8.1"}, {"python": "3.14.0"}),
    ({"torch": None}, {"location": None}),
    (WITHOUT_IPEX, {"environment": {"ACCELERATE_USE_IPEX": "true"}}),
    (TODAY, {"environment": {"ACCELERATE_USE_IPEX": "true"}}),
    ({"torch": "2.13.0"}, {"environment": {"ACCELERATE_USE_IPEX": "true"}}),
    (IPEX_ERA, {"environment": {"ACCELERATE_USE_IPEX": "false"}}),
    ({"oneccl_bind_pt": "?"}, {}),
)


def told(packages, more):
    """What is found in an environment, below what is in it."""
    there = [f"{name} {version}" for name, version in packages.items()]
    asked = [f"{name}: {value}" for name, value in more.items()]
    findings = (one for check in versions.CHECKS for one in check(machine(packages, **more)))
    said = [words(finding, BY_CODE[finding.code], code=True) for finding in findings]
    return "\n".join((f"== {', '.join((*there, *asked))}", *(said or ["nothing\n"])))


def test_stacks_are_judged_as_was_reviewed(request):
    said = "\n".join(told(*row) for row in STACKS)
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(said, encoding="utf-8")
    assert said == GOLDEN.read_text(encoding="utf-8")


def findings(packages, **more):
    facts = machine(packages, **more)
    return {finding.code: finding for check in versions.CHECKS for finding in check(facts)}


BROUGHT = "/venv/site-packages/oneccl_bindings_for_pytorch/lib/libccl.so.1.0"


def setvars(libraries, **environment):
    """The finding about setvars.sh on a machine with these libccl; None where it is silent."""
    found = tuple(Library(name="libccl", path=path) for path in libraries)
    facts = replace(machine(ONECCL, environment=environment), libraries=found)
    findings = (finding for check in versions.CHECKS for finding in check(facts))
    return next((finding for finding in findings if finding.code == "oneccl-setvars"), None)


def test_setvars_of_the_bindings_is_named_if_it_is_there_and_was_not_sourced():
    finding = setvars([BROUGHT])
    script = "/venv/site-packages/oneccl_bindings_for_pytorch/env/setvars.sh"
    assert finding.command == f". '{script}'"
    assert setvars([], CCL_ROOT="/nowhere").command is None
    assert setvars([BROUGHT], LD_LIBRARY_PATH=BROUGHT.rpartition("/")[0]) is None
    assert setvars(["/opt/ccl/lib/libccl.so.1"], LD_LIBRARY_PATH="/x:/opt/ccl/lib") is None
    for facts in (replace(machine(ONECCL), recorded=True), machine({"oneccl_bind_pt": "?"})):
        assert not versions.oneccl_setvars(facts)


def pinned(command):
    """The versions that a command installs, and (None) removes."""
    for line in command.replace("\n", " && ").split(" && "):
        if not line.startswith("pip "):
            continue
        for word in line.split()[2:]:
            name, _, version = word.partition("==")
            if short_name(name):
                yield short_name(name), version if " install " in line else None


class TestJudgeStack:
    def judge(self, spec, packages=TODAY):
        found = judge_stack(spec, machine(packages))
        return {finding.code: finding for finding in found}

    def test_versions_that_fit_are_reported_in_stretches(self):
        fits = self.judge("torch=2.8.0,accelerate=1.7.0", {})["stack-fits"].evidence.split("; ")
        assert fits[0] == "torch 2.8.0, accelerate 1.7.0"
        assert "oneccl_bind_pt: 2.8.0" in fits
        (runs,) = (said for said in fits if said.startswith("transformers: "))
        assert "4.10.3 to 4.20.1, 4.22.0 to 4.31.0, 4.40.2 to 4.51.3" in runs
        assert "numpy: 1 or 2" in fits
        assert fits[-1] == "Python: 3.9 to 3.13"

    def test_no_two_findings_of_a_stack_contradict_each_other(self):
        for packages, more in STACKS:
            facts = machine(packages, **more)
            found = [one for check in CHECKS for one in check(facts)]
            ends = {pin for one in found for pin in dict(pinned(one.command or "")).items()}
            assert len({name for name, _ in ends}) == len(ends), packages

    @every_row(
        "spec",
        ["", "torch", "torch=", "torch=abc", "tensorflow=2", "torch=2,torch=2.7", "python=3.11"],
    )
    def test_what_cannot_be_read_is_a_usage_error_with_a_hint(self, spec):
        with pytest.raises(UsageError) as caught:
            judge_stack(spec, machine(TODAY))
        assert caught.value.hint


def test_a_cache_that_transformers_no_longer_reads_is_named_with_the_one_that_it_does(
    golden: Golden,
):
    facts = machine(TODAY, environment={"TRANSFORMERS_CACHE": "/models"})
    (found,) = BY_CODE["stack-variable-ignored"](facts)
    golden(found.command)
    older = machine({**TODAY, "transformers": "4.57.1"}, environment=facts.environment)
    assert not BY_CODE["stack-variable-ignored"](older)


@pytest.mark.parametrize(
    ("stack", "wrong"),
    [
        ("numpy=1.26.4,python=3.14", True),
        ("numpy=1.26.4,python=3.12", False),
        ("numpy=2.3.5,python=3.14", False),
    ],
)
def test_a_numpy_without_wheels_for_this_python(stack: str, wrong: bool) -> None:
    found = judge_stack(stack, machine(TODAY))
    assert ("stack-python" in {one.code for one in found}) is wrong


@every_row(
    ("stack", "impossible"),
    [
        ("torch=2.13.0,transformers=5.23.0,datasets=2.15.0", True),
        ("torch=2.13.0,transformers=5.23.0,datasets=2.14.7", True),
        ("torch=2.13.0,transformers=5.23.0,datasets=4.8.5", False),
        ("torch=2.13.0,transformers=4.57.1,datasets=2.15.0", False),
    ],
)
def test_a_stack_for_which_no_release_of_a_needed_package_fits(
    stack: str, impossible: bool
) -> None:
    findings = {one.code: one for one in judge_stack(stack, machine({}))}
    assert ("stack-impossible" in findings) is impossible
    if impossible:
        assert "huggingface_hub" in findings["stack-impossible"].evidence
        assert "datasets" in (findings["stack-impossible"].command or "")
