"""``cputune tune --storage``: what is refused, and that no password is printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import Run

from cputune.cli import cli
from cputune.cli.tune import _again as again
from cputune.workload import Workload

ADDRESS = "postgresql://tuner:geheim@db/studies?sslmode=require&password=geheim"


Said = Callable[..., tuple[int, str]]


@pytest.fixture
def run(cputune: Run) -> Said:
    """A command: its exit code and all that it printed, in which there is no password."""

    def ended(*words: str) -> tuple[int, str]:
        code, out, err = cputune(*words)
        assert "geheim" not in out + err
        return code, out + err

    return ended


def test_a_file_and_a_database_exclude_each_other(run: Said) -> None:
    code, said = run("tune", "--storage", ADDRESS, "--study", "a.db", "--dry-run")
    assert code == 2
    assert "--study and --storage exclude each other" in said


def test_what_is_no_address_is_refused(run: Said) -> None:
    code, said = run("tune", "--storage", "tuner:geheim@db/studies", "--dry-run")
    assert code == 2
    assert "hint: --storage postgresql://" in said


def test_the_settings_show_it_without_its_password(
    run: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPUTUNE_TUNE_STORAGE", ADDRESS)
    for more in ((), ("--json",)):
        code, said = run("config", "tune", *more)
        assert code == 0
        assert "postgresql://tuner@db/studies" in said


def test_a_folder_may_not_name_it(
    run: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cputune.toml").write_text(f'[tune]\nstorage = "{ADDRESS}"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CPUTUNE_CONFIG")
    _, said = run("config", "tune")
    assert "db/studies" not in said


def test_the_command_that_goes_on_has_no_password() -> None:
    tune = cli.get_command(cli.make_context("cputune", ["tune"]), "tune")
    assert tune is not None
    context = tune.make_context("tune", ["--storage", ADDRESS, "--budget", "3"])
    said = again(context, Workload.from_recipe("bert-mini"), ())
    assert "--storage 'postgresql://tuner@db/studies?sslmode=require'" in said
    assert "geheim" not in said
