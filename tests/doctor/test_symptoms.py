"""From the text of an error to its cause: each row of the table, on words as people report them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from clean_machine import CLEAN, changed
from click.testing import CliRunner

from cputune.cli import cli
from cputune.doctor.registry import all_checks
from cputune.doctor.symptoms import MOST_CHARACTERS, cause_of, judge_symptom, recognised, symptoms
from cputune.errors import CannotError

REPORTED = Path(__file__).parent / "reported_errors.txt"
"""A name, a tab, and a line as it stands in the thread that the row names."""


def reported() -> list[tuple[str, str]]:
    lines = REPORTED.read_text(encoding="utf-8").splitlines()
    return [(name, line) for name, _, line in (one.partition("\t") for one in lines)]


@pytest.mark.parametrize(("name", "line"), reported())
def test_an_error_is_known_by_the_words_that_people_report(name: str, line: str) -> None:
    text = f'Traceback (most recent call last):\n  File "train.py", line 3\n{line}\nend'
    assert [one.name for one in recognised(text)] == [name]


def test_every_row_has_words_that_people_report() -> None:
    names = [one.name for one in symptoms()]
    assert set(names) == {name for name, _ in reported()}
    assert len(names) == len(set(names)) >= 30


def test_rows_name_checks_that_exist_and_threads() -> None:
    codes = {check.code for check in all_checks()}
    for one in symptoms():
        assert set(one.finds) <= codes, one.name
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", one.source), one.name
        assert not one.cure.endswith("."), one.name
        assert one.cause.endswith("."), one.name


def test_the_finding_says_line_cause_cure_check_and_thread() -> None:
    (found,) = judge_symptom("RuntimeError: Unable to find address for: ^lo", CLEAN)
    assert found.evidence.startswith("RuntimeError: Unable to find address for: ^lo: names differ")
    assert "Found beforehand by: interface-missing." in found.evidence
    assert found.source == "aws-samples/aws-do-eks#51"


def test_what_this_machine_shows_of_the_cause_follows_with_its_numbers() -> None:
    facts = changed(limits={"shm_bytes": 64 << 20, "open_files": 256, "open_files_hard": 4096})
    found = list(judge_symptom("received 0 items of ancdata", facts))
    assert [one.code for one in found] == ["symptom", "open-files"]
    assert "256 open files" in found[1].evidence
    assert found[0].command is None, "the command of this machine stands with its finding"


def test_a_text_without_a_known_error_is_no_diagnosis() -> None:
    with pytest.raises(CannotError, match="none of the"):
        list(judge_symptom("ZeroDivisionError: division by zero\n", CLEAN))


def test_the_end_of_a_long_log_is_read() -> None:
    text = "step 1\n" * MOST_CHARACTERS + "Bus error (core dumped)"
    assert [one.name for one in recognised(text)] == ["bus-error"]
    line = "x" * 5000 + " Address already in use " + "y" * 5000
    (seen,) = recognised(line).values()
    assert "Address already in use" in seen
    assert len(seen) <= 300


def test_a_warning_is_no_cause_of_an_end() -> None:
    forked = dict(reported())["tokenizers-forked"]
    assert cause_of(forked) is None
    assert cause_of(f"{forked}\nKilled").name == "killed"  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["words", "file", "stdin"])
def test_the_command_takes_words_a_file_and_stdin(how: str, tmp_path: Path) -> None:
    text, log = "epoch 1\nOSError: [Errno 28] No space left on device\n", tmp_path / "train.log"
    log.write_text(text)
    given = {"words": text, "file": str(log), "stdin": "-"}[how]
    done = CliRunner().invoke(cli, ["doctor", "--symptom", given, "--json"], input=text)
    assert done.exit_code == 1
    assert '"symptom"' in done.output
    assert "huggingface/diffusers#4957" in done.output
