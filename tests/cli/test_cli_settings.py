"""Defaults from files and variables: who beats whom, what is refused, what a folder may not do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from hosts.builder import machine
from in_process import Run

from cputune.cli import cli
from cputune.cli.settings import Setting, options_of


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder and a home of nobody; the user's file is ``own/cputune/config.toml``."""
    monkeypatch.delenv("CPUTUNE_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    (tmp_path / "own" / "cputune").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def cputune(home: Path, cputune: Run) -> Run:
    return cputune


def own(home: Path, text: str) -> Path:
    path = home / "own" / "cputune" / "config.toml"
    path.write_text(text)
    return path


def folder(text: str, name: str = "cputune.toml") -> None:
    Path(name).write_text(text)


def shown(cputune: Run, command: str, key: str) -> tuple[Any, str, str | None]:
    ended = cputune("config", command, "--json")
    assert ended.code == 0, ended.err
    (row,) = (r for r in json.loads(ended.out)["options"] if r["option"] == key)
    return row["value"], row["from"], row["place"]


def commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {"": cli, **{name: command for name, command in found.items() if command is not None}}


def test_variables_beat_the_folder_which_beats_the_users_file_which_beats_the_default(
    cputune: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(cputune, "tune", "budget") == (20, "default", None)
    path = own(home, "[tune]\nbudget = 5")
    assert shown(cputune, "tune", "budget") == (5, "file", str(path))
    folder("[tune]\nbudget = 6")
    assert shown(cputune, "tune", "budget") == (6, "file", "cputune.toml")
    monkeypatch.setenv("CPUTUNE_TUNE_BUDGET", "7")
    assert shown(cputune, "tune", "budget") == (7, "variable", "CPUTUNE_TUNE_BUDGET")


def test_what_is_typed_beats_all_of_them(cputune: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder("[tune]\nbudget = 0")
    monkeypatch.setenv("CPUTUNE_TUNE_BUDGET", "-1")
    assert "1 or more, not -1" in cputune("tune", "--dry-run").err
    assert "1 or more, not -2" in cputune("tune", "--dry-run", "--budget", "-2").err


def test_a_file_decides_what_the_command_does(cputune: Run, home: Path) -> None:
    busy = {"/proc/loadavg": "9.00 9.00 9.00 3/500 4242\n"}
    machine(home / "busy", sockets=2, cores=8, files=busy)
    assert cputune("doctor", "--root", str(home / "busy")).code == 0
    folder('[tool.cputune.doctor]\nfail-on = "warning"', "pyproject.toml")
    ended = cputune("doctor", "--root", str(home / "busy"))
    assert ended.code == 1
    assert ended.err == "note: pyproject.toml sets fail-on = 'warning'\n"
    assert cputune("doctor", "--root", str(home / "busy"), "--fail-on", "never").code == 0


def test_cputune_toml_comes_before_pyproject_toml(cputune: Run) -> None:
    folder("[tool.cputune.tune]\nbudget = 5", "pyproject.toml")
    assert shown(cputune, "tune", "budget") == (5, "file", "pyproject.toml")
    folder("[tune]\nseed = 3")
    assert shown(cputune, "tune", "budget") == (20, "default", None)


@pytest.mark.parametrize(
    "text", ['[project]\nname = "cputune-user"', "[broken cputune", "[tool]\n"]
)
def test_a_pyproject_that_says_nothing_of_us_is_passed_over(cputune: Run, text: str) -> None:
    folder(text, "pyproject.toml")
    assert shown(cputune, "tune", "budget") == (20, "default", None)


def test_config_shows_every_option_of_every_command(cputune: Run) -> None:
    folder('color = "never"\n[tune]\nfix = ["precision=bf16"]')
    rows = json.loads(cputune("config", "--json").out)["options"]
    known = {
        (name or None, option.key)
        for name, command in commands().items()
        for option in options_of(command)
    }
    assert {(row["command"], row["option"]) for row in rows} == known
    assert shown(cputune, "tune", "fix") == (["precision=bf16"], "file", "cputune.toml")
    text = cputune("config").out
    assert "files that were read: cputune.toml;" in text


REFUSED = {
    "budgt = 1": "budgt is no option|`cputune config` shows",
    "[tune]\nbudgt = 1": "tune.budgt is no option|did you mean budget?",
    "[tunes]\nbudget = 1": "[tunes] is no command|did you mean tune?",
    "tune = 3": "tune is a command, and 3 no table|begin with [tune]",
    '[tune]\nbudget = "20"': "tune.budget is a whole number, not '20'|",
    "[tune]\nbudget = [5]": "tune.budget is a whole number, not [5]|",
    "[tune]\nbudget = true": "tune.budget is a whole number, not True|",
    "[tune]\nbudget = 1.5": "tune.budget is a whole number, not 1.5|",
    "[tune]\nfix = 'precision=bf16'": "tune.fix is a list|fix = ['precision=bf16']",
    "[tune]\nfix = [1]": "tune.fix is text in quotes, not 1|",
    "[tune]\nmax-time = 10": "tune.max-time is text in quotes, not 10|",
    "[tune]\nallow-slow-precision = 1": "tune.allow-slow-precision is true or false, not 1|",
    "[tune]\nbudget = [1": "cputune.toml is not TOML|--config none does without",
    "[tune]\nbudget = " + 5000 * "9": "cputune.toml is not TOML|",
    "a = " + 5000 * "[": "cputune.toml is not TOML|",
    'color = "red"': "color: 'red' is not one of|",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:40])
def test_what_means_nothing_is_refused_with_a_hint(cputune: Run, text: str) -> None:
    folder(text)
    error, hint = REFUSED[text].split("|")
    ended = cputune("tune", "--dry-run")
    assert ended.code == 2
    assert ended.out == ""
    said, hinted = ended.err.splitlines()
    assert said.startswith("error: cputune.toml")
    assert error in said
    assert hinted.startswith("hint: ")
    assert hint in hinted


def test_a_fifo_is_not_waited_for(cputune: Run) -> None:
    os.mkfifo("cputune.toml")
    ended = cputune("doctor", "--explain")
    assert ended.code == 3
    assert "cannot read cputune.toml: not a regular file" in ended.err
    assert cputune("--config", "none", "doctor", "--explain").code == 0


def test_a_variable_of_the_wrong_type_is_named(
    cputune: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPUTUNE_TUNE_BUDGET", "many")
    for words in (("tune", "--dry-run"), ("config",)):
        ended = cputune(*words)
        assert ended.code == 2
        assert "error: CPUTUNE_TUNE_BUDGET: " in ended.err


def test_a_variable_of_no_option_is_refused(cputune: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUTUNE_TUNE_BUGDET", "3")
    ended = cputune("tune", "--dry-run")
    assert ended.code == 2
    assert "hint: did you mean CPUTUNE_TUNE_BUDGET?" in ended.err


@pytest.mark.parametrize(("name", "command"), commands().items())
def test_a_working_folder_sets_only_what_is_listed(
    cputune: Run, home: Path, name: str, command: click.Command
) -> None:
    for option in options_of(command):
        key = option.key
        if option.folder:
            continue
        folder((f"[{name}]\n" if name else "") + f"{key} = 1")
        ended = cputune(*([name] if name else ["config"]))
        place = f"{name}.{key}" if name else key
        assert f"cputune.toml: {place} may not be set by a working folder: " in ended.err
        assert ended.code == 2


def test_every_option_can_be_set_by_a_file_and_a_variable() -> None:
    for name, command in commands().items():
        for option in command.params:
            if isinstance(option, click.Option) and option.name not in (
                "config",
                "version",
                "terms",
            ):
                assert isinstance(option, Setting), f"{name}: {option.name}"


def test_a_hostile_folder_replaces_and_starts_nothing(cputune: Run) -> None:
    Path("cputune.json").write_text("{}")
    for text in (
        "[tune]\nforce = true",
        '[tune]\nstudy = "cputune.json"',
        '[doctor]\npython = "./python"',
        '[doctor]\noutput = "../x"\nforce = true',
        "[emit]\nverify = true",
        '[tune]\nrecipe = "./recipe.toml"',
    ):
        folder(text)
        ended = cputune(text[1 : text.index("]")], *(["-f", "env"] if "emit" in text else []))
        assert ended.code == 2
        assert "may not be set by a working folder" in ended.err
    assert sorted(os.listdir()) == ["cputune.json", "cputune.toml"]


def test_the_users_own_file_and_a_named_one_set_every_option(cputune: Run, home: Path) -> None:
    path = own(home, '[tune]\noutput = "here.json"\nforce = true')
    assert shown(cputune, "tune", "output") == ("here.json", "file", str(path))
    folder('[tune]\noutput = "there.json"')
    ended = cputune("--config", "cputune.toml", "config", "tune", "--json")
    (row,) = (r for r in json.loads(ended.out)["options"] if r["option"] == "output")
    assert row["value"] == "there.json"


def test_a_relative_xdg_config_home_is_no_home(
    cputune: Run, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", ".")
    monkeypatch.setenv("HOME", str(home))
    Path("cputune").mkdir()
    Path("cputune/config.toml").write_text("[tune]\nforce = true")
    assert shown(cputune, "tune", "force") == (False, "default", None)


def test_errors_are_told_as_json_where_a_variable_asks_for_json(
    cputune: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPUTUNE_TUNE_JSON", "1")
    ended = cputune("tune", "--budget", "x")
    assert json.loads(ended.out)["schema"] == "cputune.error/1"


def test_quiet_leaves_errors_alone(cputune: Run) -> None:
    folder('[emit]\nformat = "env"')
    assert "note: cputune.toml sets format" in cputune("emit").err
    assert cputune("emit", "-q").err == ""
    assert cputune("-q", "emit").err == ""
    assert "error: " in cputune("-q", "tune", "--budget", "0", "--dry-run").err


def test_verbose_shows_what_is_logged_and_only_then(cputune: Run) -> None:
    words = ("doctor", "--fail-on", "never")
    assert cputune(*words).err == ""
    once, twice = cputune(*words, "-v").err, cputune("-v", *words, "-v").err
    assert "cputune.probing: looked at a machine" in once
    assert " is not known: " not in once
    assert " is not known: " in twice
    assert cputune(*words).err == ""
