"""Defaults from a file and variables: who beats whom, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli.test_cli_help import commands
from in_process import Run

from cputune.cli import cli
from cputune.cli.option_defaults import options_of


@pytest.fixture
def cputune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cputune: Run) -> Run:
    """In an empty folder, with a home of nobody."""
    monkeypatch.delenv("CPUTUNE_CONFIG")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    return cputune


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Where the user's file lies."""
    (tmp_path / "own" / "cputune").mkdir(parents=True)
    return tmp_path / "own" / "cputune" / "config.toml"


def rows(cputune: Run, *words: str) -> dict[tuple[str, str], tuple[str, str]]:
    """What `config` shows of each option of each command: its value, and who says so."""
    ended = cputune(*words, "config")
    assert ended.code == 0, ended.err
    table = ended.out.partition("\n\n")[0].splitlines()[1:]
    lines = (re.split(" {2,}", line, maxsplit=3) for line in table)
    return {(command, key): (value, place) for command, key, value, place in lines}


def test_a_variable_beats_the_file_which_beats_the_default(
    cputune: Run, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows(cputune)["tune", "budget"] == ("20", "default")
    own.write_text("[tune]\nbudget = 5")
    assert rows(cputune)["tune", "budget"] == ("5", f"{own}: tune.budget")
    monkeypatch.setenv("CPUTUNE_TUNE_BUDGET", "7")
    assert rows(cputune)["tune", "budget"] == ("7", "CPUTUNE_TUNE_BUDGET")


def test_what_is_typed_beats_all_of_them(
    cputune: Run, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.write_text("[tune]\nbudget = 0")
    monkeypatch.setenv("CPUTUNE_TUNE_BUDGET", "-1")
    assert "1 or more, not -1" in cputune("tune", "--dry-run").err
    assert "1 or more, not -2" in cputune("tune", "--dry-run", "--budget", "-2").err


def test_a_file_that_is_named_is_read_in_place_of_the_users(cputune: Run, own: Path) -> None:
    own.write_text("[tune]\nseed = 3")
    Path("ours.toml").write_text('[tune]\nbudget = 6\nfix = ["precision=bf16"]')
    told = rows(cputune, "--config", "ours.toml").items()
    ours = {key: value for (_, key), (value, place) in told if place.startswith("ours.toml: tune.")}
    assert ours == {"budget": "6", "fix": "precision=bf16"}
    assert cputune("--config", "none.toml", "config").code == 3


def test_nothing_in_the_working_folder_is_read(cputune: Run) -> None:
    for name in ("cputune.toml", "config.toml"):
        Path(name).write_text("[tune]\nbudget = 5")
    Path("pyproject.toml").write_text("[tool.cputune.tune]\nbudget = 5")
    assert rows(cputune)["tune", "budget"] == ("20", "default")


def test_a_relative_xdg_config_home_is_no_home(
    cputune: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", ".")
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("cputune").mkdir()
    Path("cputune/config.toml").write_text("[tune]\nforce = true")
    assert rows(cputune)["tune", "force"] == ("False", "default")


def test_config_shows_every_option_of_every_command(cputune: Run) -> None:
    known = {
        (name, key) for name, one in [*commands(), ("cputune", cli)] for key in options_of(one)
    }
    assert set(rows(cputune)) == known
    assert "the file that was read: none; it would be " in " ".join(cputune("config").out.split())


REFUSED = {
    "budgt = 1": "budgt is not an option|run `cputune config`",
    "[tune]\nbudgt = 1": "tune.budgt is not an option|run `cputune config`",
    "[tunes]\nbudget = 1": "tunes is not an option|run `cputune config`",
    "tune = 3": "tune is not an option|run `cputune config`",
    '[tune]\nbudget = "many"': "tune.budget: Invalid value for '--budget': 'many' is not|",
    "[tune]\nbudget = [5]": "tune.budget must be a text or a number, not [5]|",
    "[tune]\nbudget = true": "tune.budget: Invalid value for '--budget': 'True' is not|",
    "[tune]\nbudget = 1.5": "tune.budget: Invalid value for '--budget': '1.5' is not|",
    "[tune]\nfix = 'precision=bf16'": "tune.fix must be a list of texts, not 'precision=bf16'|",
    "[tune]\nallow-slow-precision = 7": "tune.allow-slow-precision: Invalid value|",
    "[tune]\nbudget = [1": "config.toml is not TOML|ignore it with --config none",
    "[tune]\nbudget = " + 5000 * "9": "config.toml is not TOML|",
    "a = " + 5000 * "[": "config.toml is not TOML|",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:40])
def test_what_means_nothing_is_refused_with_a_hint(cputune: Run, own: Path, text: str) -> None:
    own.write_text(text)
    error, hint = REFUSED[text].split("|")
    ended = cputune("tune", "--dry-run")
    assert (ended.code, ended.out) == (2, "")
    said, hinted = ended.err.splitlines()
    assert said.startswith(f"error: {own}")
    assert error in said
    assert hinted.startswith("hint: ")
    assert hint in hinted


def test_a_variable_of_the_wrong_type_is_named(
    cputune: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPUTUNE_TUNE_BUDGET", "many")
    for words in (("tune", "--dry-run"), ("config",)):
        ended = cputune(*words)
        assert ended.code == 2
        assert "error: CPUTUNE_TUNE_BUDGET: " in ended.err


def test_quiet_leaves_errors_alone(cputune: Run) -> None:
    words = ("emit", "-f", "torchrun", "-o", "-")
    assert "note: nothing was measured" in cputune(*words).err
    assert cputune(*words, "-q").err == ""
    assert cputune("-q", *words).err == ""
    assert "error: " in cputune("-q", "tune", "--budget", "0", "--dry-run").err


def test_verbose_shows_what_is_logged_and_only_then(cputune: Run) -> None:
    words = ("doctor", "--fail-on", "never")
    assert cputune(*words).err == ""
    once, twice = cputune(*words, "-v").err, cputune("-v", *words, "-v").err
    assert "cputune.probing: examined a machine" in once
    assert " is not known: " not in once
    assert " is not known: " in twice
    assert cputune(*words).err == ""
