"""What is emitted, word for word: a machine × a format. ``--update-golden`` renews them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from emit_machines import MACHINES
from scripts import shellcheck

import cputune.emitters.header
from cputune import EmittedFile, UsageError, emit
from cputune.emitters import FORMATS
from cputune.emitters.command import APPLY_SCRIPT, PLAN_FILE, RANK_SCRIPT, RECIPE_FILE, TRAIN_SCRIPT
from cputune.emitters.container import PLACE_SCRIPT
from cputune.emitters.promise import promise_in
from cputune.verifier import CONSUMERS

GOLDEN = Path(__file__).parent.parent / "golden"
COMPANIONS = (RANK_SCRIPT, PLACE_SCRIPT, APPLY_SCRIPT, TRAIN_SCRIPT, RECIPE_FILE, PLAN_FILE)
SCRIPTS = sorted(GOLDEN.glob("*/*/*.sh"))


@pytest.fixture(autouse=True)
def _one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cputune.emitters.header, "_version", lambda: "VERSION")


def without_digests(text: str) -> str:
    """What is launched, whatever stands today in the programs beside it."""
    text = re.sub(r'"file:[0-9a-f]{16}"', '"file:DIGEST"', text)
    return re.sub(r'(\\"folder\\":)\{[^{}]*\}', r"\1{}", text)


def emitted(machine: str, format: str) -> tuple[EmittedFile, ...]:
    """The files; of a format that does not have such plans, the reason."""
    case = MACHINES[machine]()
    try:
        return emit(case.result, format, facts=case.facts, **case.options)
    except UsageError as error:
        return (EmittedFile(name="refused.txt", text=f"{error}\nhint: {error.hint}\n"),)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_files_are_those_that_were_reviewed(
    machine: str, format: str, request: pytest.FixtureRequest
) -> None:
    files = [file for file in emitted(machine, format) if file.name not in COMPANIONS]
    directory = GOLDEN / machine / format
    if request.config.getoption("--update-golden"):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for file in files:
            (directory / file.name).write_text(without_digests(file.text), encoding="utf-8")
    golden = {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()}
    assert {file.name: without_digests(file.text) for file in files} == golden


def test_shellcheck_has_nothing_to_say() -> None:
    assert shellcheck(*SCRIPTS) == ""


@pytest.mark.parametrize("format", FORMATS)
def test_who_verifies_knows_the_format_again(format: str) -> None:
    assert promise_in(emitted("one-socket", format)[0].text).format == format
    assert set(FORMATS[format].consumers) <= set(CONSUMERS)
