"""``cputune show``, ``compare`` and ``history`` as their user meets them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
from in_process import Run
from tuner.fakes import SMALL

import cputune as library
from cputune.cli import cli
from cputune.history import keep
from cputune.result import Result
from cputune.workload import Workload


@pytest.fixture
def cputune(
    result: Result,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cputune: Run,
) -> Run:
    """In a folder with a result, and a history that holds it, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("cputune.probing.probe", lambda host=None: SMALL.facts)
    result.save("cputune.json")
    keep(result, now="20261121-193000")
    return cputune


def test_show_tells_what_lies_here(cputune: Run) -> None:
    ended = cputune("show")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("2.56 times as fast as today's launch")
    assert "cputune run cputune.json" in ended.out


@pytest.mark.parametrize("word", ["20261121-193000", "2026", "last"])
def test_show_opens_a_result_of_the_history_and_names_it_by_its_id(cputune: Run, word: str) -> None:
    assert "cputune run 20261121-193000\n" in cputune("show", word).out


def test_show_has_three_forms(cputune: Run) -> None:
    assert cputune("show", "--format", "markdown").out.startswith("## cputune show\n")
    assert json.loads(cputune("show", "-f", "json").out)["schema"] == "cputune.summary/1"


def test_a_format_may_be_a_default_of_ones_own(
    cputune: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPUTUNE_SHOW_FORMAT", "markdown")
    assert cputune("show").out.startswith("## cputune show")


@pytest.mark.parametrize(
    ("words", "code", "error", "hint"),
    [
        (("show", "no.json"), 3, "cannot read no.json", "run `cputune tune` first"),
        (("show", "1999"), 2, "there is no file 1999", "`cputune history` lists them"),
        (("show", "broken.json"), 3, "broken.json is not JSON", "run `cputune tune` again"),
        (("show", "."), 3, "cannot read .: not a regular file", "cputune tune"),
        (("compare", "cputune.json"), 2, "Missing argument 'AFTER'", "compare --help"),
        (("compare", "cputune.json", "no.json"), 3, "cannot read no.json", "cputune tune"),
        (("show", "--format", "xml"), 2, "'xml' is not one of", "cputune show --help"),
    ],
)
def test_what_cannot_be_shown_is_said_with_a_hint(
    cputune: Run, words: tuple[str, ...], code: int, error: str, hint: str
) -> None:
    Path("broken.json").write_text("{")
    ended = cputune(*words)
    assert (ended.code, ended.out) == (code, "")
    assert error in ended.err
    assert hint in ended.err


def test_where_nothing_lies_the_history_is_pointed_out(cputune: Run) -> None:
    Path("cputune.json").unlink()
    ended = cputune("show")
    assert ended.code == 3
    assert "there is no cputune.json here" in ended.err
    assert "`cputune history` lists earlier ones" in ended.err


def test_an_error_is_told_as_json_where_json_is_asked_for(cputune: Run) -> None:
    ended = cputune("show", "no.json", "--format", "json")
    assert json.loads(ended.out)["error"]["message"].startswith("cannot read no.json")


def test_compare_says_it_in_words(cputune: Run) -> None:
    ended = cputune("compare", "cputune.json", "last")
    assert ended.code == 0
    assert ended.out.startswith("The best plans of last and cputune.json are as fast: ")
    assert "last beside cputune.json: same machine, same work.\n" in ended.out


def test_compare_has_three_forms(cputune: Run) -> None:
    words = ("compare", "cputune.json", "last", "--format")
    assert cputune(*words, "markdown").out.startswith("## cputune compare\n")
    assert json.loads(cputune(*words, "json").out)["schema"] == "cputune.comparison/1"


def test_other_work_ends_compare_with_3(cputune: Run, result: Result) -> None:
    other = replace(result, workload=Workload.from_recipe("gpt2-clm"))
    other.save("other.json")
    ended = cputune("compare", "cputune.json", "other.json")
    assert (ended.code, ended.out) == (3, "")
    assert "they trained different things" in ended.err


def test_history_lists_what_was_kept(
    cputune: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    _, row, _, place = cputune("history").out.splitlines()
    for words in ("20261121-193000", "Simulated", "×2.56"):
        assert words in row
    assert place.startswith(f"- Kept in {tmp_path / 'state'}/cputune/history, the newest 100.")
    assert "\n| id | machine |" in cputune("history", "-f", "markdown").out
    (kept,) = json.loads(cputune("history", "-f", "json").out)["results"]
    assert kept["id"] == "20261121-193000"


def test_a_history_that_is_empty_says_so(cputune: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/state")
    assert "nothing was kept" in cputune("history").out
    assert json.loads(cputune("history", "-f", "json").out)["results"] == []


def test_emit_takes_an_id_too(cputune: Run) -> None:
    Path("cputune.json").unlink()
    ended = cputune("emit", "--format", "env", "20261121-193000")
    assert ended.code == 0, ended.err
    assert "export OMP_NUM_THREADS=2" in ended.out


def test_ids_are_completed_and_files_where_none_begins_so(cputune: Run) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, "show")
    assert command is not None
    (argument,) = (one for one in command.params if isinstance(one, click.Argument))
    completed = argument.shell_complete(context, "2026")
    assert [item.value for item in completed] == ["20261121-193000"]
    assert [item.type for item in argument.shell_complete(context, "cpu")] == ["file"]


def test_a_machine_that_cannot_be_read_hides_no_result(
    cputune: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(host: object = None) -> None:
        raise library.CputuneError("no /proc")

    monkeypatch.setattr("cputune.probing.probe", broken)
    ended = cputune("show")
    assert ended.code == 0
    assert "times as fast" in ended.out
