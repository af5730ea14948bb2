"""``cputune show``, ``compare`` and ``history`` as their user meets them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from in_process import Run
from tuner.fakes import SMALL

import cputune as library
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


def test_show_and_compare_have_a_document(cputune: Run, result: Result) -> None:
    replace(result, created=None).save("other.json")
    words = ("compare", "cputune.json", "other.json", "--json")
    assert json.loads(cputune("show", "--json").out)["schema"] == "cputune.summary/1"
    assert json.loads(cputune(*words).out)["schema"] == "cputune.comparison/1"


@pytest.mark.parametrize(
    ("words", "code", "error", "hint"),
    [
        (("show", "no.json"), 3, "cannot read no.json", "run `cputune tune` first"),
        (("show", "1999"), 2, "there is no file 1999", "`cputune history` lists them"),
        (("show", "broken.json"), 3, "broken.json is not JSON", "run `cputune tune` again"),
        (("show", "."), 3, "cannot read .: not a regular file", "cputune tune"),
        (("compare", "cputune.json"), 2, "Missing argument 'AFTER'", "compare --help"),
        (("compare", "cputune.json", "no.json"), 3, "cannot read no.json", "cputune tune"),
        (("compare", "cputune.json", "last"), 3, "one and the same result", "tune the same"),
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
    ended = cputune("show", "no.json", "--json")
    assert json.loads(ended.out)["error"]["message"].startswith("cannot read no.json")


def test_compare_says_it_in_words(cputune: Run) -> None:
    replace(Result.load("cputune.json"), created=None).save("other.json")
    ended = cputune("compare", "other.json", "last")
    assert ended.code == 0
    assert ended.out.startswith("The best plans of last and other.json are as fast: ")


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
    (kept,) = json.loads(cputune("history", "--json").out)["results"]
    assert kept["id"] == "20261121-193000"


def test_a_history_that_is_empty_says_so(cputune: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/state")
    assert "nothing was kept" in cputune("history").out
    assert json.loads(cputune("history", "--json").out)["results"] == []


def test_emit_takes_an_id_too(cputune: Run) -> None:
    Path("cputune.json").unlink()
    ended = cputune("emit", "--format", "env", "20261121-193000")
    assert ended.code == 0, ended.err
    assert "export OMP_NUM_THREADS=2" in ended.out


def test_a_machine_that_cannot_be_read_hides_no_result(
    cputune: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(host: object = None) -> None:
        raise library.CputuneError("no /proc")

    monkeypatch.setattr("cputune.probing.probe", broken)
    ended = cputune("show")
    assert ended.code == 0
    assert "times as fast" in ended.out
