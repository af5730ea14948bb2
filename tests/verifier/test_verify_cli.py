import json
import os

import pytest
from click.testing import CliRunner

from cputune.cli.verify import command
from cputune.host import locks


@pytest.fixture
def run():
    def invoke(*arguments):
        return CliRunner().invoke(command, [str(argument) for argument in arguments])

    return invoke


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("#!/usr/bin/env bash\nset -eu\nmpirun -n 2 train\n")
    return path


@pytest.fixture(autouse=True)
def _own_machine(monkeypatch):
    """Other tests may measure at the same time."""
    monkeypatch.setattr(locks, "MEASURING", f"\0cputune.test.{os.getpid()}")


def test_while_another_process_measures_nothing_is_run(run, script, monkeypatch):
    def interrupted(visitor):
        raise KeyboardInterrupt

    monkeypatch.setattr(locks, "_peer", interrupted)
    with locks.measuring_lock(pytest.fail):
        assert run(script).exit_code == 1, "click's word for an interrupt"
        assert run("--no-run", script).exit_code == 3
        assert run("--share-machine", script).exit_code == 3


def test_what_cannot_be_checked_ends_with_3(run, script):
    done = run("--no-run", "--json", script)
    assert done.exit_code == 3
    document = json.loads(done.stdout)
    assert document["schema"] == "cputune.verify/1"
    assert document["summary"] == {"passed": 0, "failed": 0, "not_checked": 1}
    (verdict,) = document["verdicts"]
    assert [check["name"] for check in verdict["checks"]] == ["syntax", "lint", "launch"]


def test_a_script_that_bash_cannot_read_fails_and_is_not_run(run, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(f"#!/bin/bash\ntouch {tmp_path / 'ran'}\nif mpirun; then\n")
    done = run(path)
    assert done.exit_code == 1
    assert "failed" in done.stdout
    assert not (tmp_path / "ran").exists()


def test_shellcheck_is_listened_to(run, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text('#!/bin/bash\necho "$(ls *.txt | grep x)"\nfor x in $y; do rm $x; done\n')
    done = run("--no-run", path)
    assert done.exit_code == 1
    assert "SC2086" in done.stdout


def test_what_a_file_says_cannot_paint_the_terminal(run, tmp_path):
    path = tmp_path / "run \x1b[31m.sh"
    path.write_text("#!/bin/bash\nmpirun\n")
    done = run("--no-run", path)
    assert "\x1b" not in done.stdout
    assert "\\x1b[31m" in done.stdout.replace("\n", "")


def test_the_document_says_what_was_not_checked(run, script):
    done = run("--no-run", "--json", script)
    assert done.exit_code == 3
    assert json.loads(done.stdout)["verdicts"][0]["state"] == "not checked"
