"""``cputune show``, ``compare`` and ``history`` as their user meets them."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from golden_texts import Golden
from in_process import Run
from simulated_ranks import simulate
from tuner.fakes import SMALL

import cputune as library
from cputune import Result, Workload
from cputune.records.history import keep
from cputune.report.trials import trials_csv
from cputune.text.documents import plain

pytestmark = pytest.mark.usefixtures("workdir", "history")


@pytest.fixture
def cputune(result: Result, monkeypatch: pytest.MonkeyPatch, cputune: Run) -> Run:
    """In a folder with a result, and a history that holds it, too."""
    monkeypatch.setenv("COLUMNS", "100")
    simulate(monkeypatch, SMALL.seconds, SMALL.facts)
    result.save("cputune.json")
    keep(result, now="20261121-193000")
    return cputune


@pytest.mark.parametrize("word", ["20261121-193000", "2026", "last"])
def test_show_opens_a_result_of_the_history_and_names_it_by_its_id(cputune: Run, word: str) -> None:
    assert "cputune run 20261121-193000\n" in cputune("show", word).out


def test_show_and_compare_have_a_document(cputune: Run, result: Result) -> None:
    words = ("compare", "cputune.json", "--json")
    assert json.loads(cputune("show", "--json").out)["schema"] == "cputune.summary/1"
    told = json.loads(cputune(*words).out)
    assert told["schema"] == "cputune.comparison/3"
    assert told["before"]["plan"] == plain(result.baseline.plan)
    assert told["after"]["plan"] == plain(result.best.plan)
    assert told["speedup"]["outcome"] == "faster"


@pytest.mark.parametrize(
    ("words", "code", "error", "hint"),
    [
        (("show", "no.json"), 3, "cannot read no.json", "run `cputune tune` first"),
        (("show", "1999"), 2, "there is no file 1999", "run `cputune history` to list the ids"),
        (("show", "broken.json"), 3, "broken.json is not JSON", "run `cputune tune` again"),
        (("show", "."), 3, "cannot read .: not a regular file", "cputune tune"),
        (("compare",), 2, "Missing argument 'BEFORE'", "compare --help"),
        (("compare", "last", "--fail-if-slower", "x"), 2, "not a share", "--fail-if-slower 5%"),
        (("compare", "last", "--max-time", "x"), 2, "not a time", "--max-time 90s"),
        (("compare", "cputune.json", "no.json"), 3, "cannot read no.json", "cputune tune"),
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


def test_if_there_is_no_result_the_history_is_pointed_out(cputune: Run, golden: Golden) -> None:
    Path("cputune.json").unlink()
    ended = cputune("show")
    assert ended.code == 3
    golden(ended.err)


def swapped(result: Result) -> Result:
    """A result that recommends the baseline, which is the slower one."""
    why = {"speedup": None, "not_compared": "it is of a test"}
    return replace(result, best=result.baseline, worth=(), profile=None, **why)


def test_compare_measures_and_says_it_in_words(
    cputune: Run, result: Result, golden: Golden
) -> None:
    swapped(result).save("today.json")
    ended = cputune("compare", "today.json", "last", "--fail-if-slower", "5%")
    assert ended.code == 0
    faster = r"The plan of last is 2\.\d+ times as fast as the plan of today\.json: "
    assert re.match(faster, ended.out)
    golden(ended.out)


def test_compare_holds_one_result_against_todays_launch(cputune: Run, golden: Golden) -> None:
    ended = cputune("compare", "cputune.json", "--max-time", "5m")
    assert ended.code == 0
    golden(ended.out)


def test_a_guard_ends_with_1_if_the_second_is_slower(
    cputune: Run, result: Result, golden: Golden
) -> None:
    swapped(result).save("today.json")
    words = ("compare", "cputune.json", "today.json")
    assert cputune(*words).code == 0
    ended = cputune(*words, "--fail-if-slower", "5%")
    assert ended.code == 1
    golden(ended.err)
    assert cputune(*words, "--fail-if-slower", "70%").code == 0


def test_the_same_plan_passes_a_guard(cputune: Run, golden: Golden) -> None:
    ended = cputune("compare", "cputune.json", "last", "--fail-if-slower", "5%")
    assert ended.code == 0
    golden(ended.out)


def test_other_work_is_listed_and_fails_a_guard(
    cputune: Run, result: Result, golden: Golden
) -> None:
    replace(result, workload=Workload.from_recipe("gpt2-clm")).save("other.json")
    ended = cputune("compare", "cputune.json", "other.json")
    assert ended.code == 0
    golden(ended.out)
    assert "times as fast" not in ended.out
    ended = cputune("compare", "cputune.json", "other.json", "--fail-if-slower", "5%")
    assert ended.code == 3
    golden(ended.err)


def test_history_lists_what_was_kept(
    cputune: Run, monkeypatch: pytest.MonkeyPatch, history: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    _, row, _, place = cputune("history").out.splitlines()
    for words in ("20261121-193000", "Simulated", "×2.56"):
        assert words in row
    assert place.startswith(f"- Stored in {history}/cputune/history, the newest 100.")
    (kept,) = json.loads(cputune("history", "--json").out)["results"]
    assert kept["id"] == "20261121-193000"


def test_a_history_that_is_empty_says_so(cputune: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/state")
    assert "There are no results yet" in cputune("history").out
    assert json.loads(cputune("history", "--json").out)["results"] == []


def test_emit_takes_an_id_too(cputune: Run) -> None:
    Path("cputune.json").unlink()
    ended = cputune("emit", "--format", "command", "20261121-193000")
    assert ended.code == 0, ended.err
    assert "cputune run 20261121-193000" in ended.out


def test_a_machine_that_cannot_be_read_hides_no_result(
    cputune: Run, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def broken(host: object = None, *, watched: bool = True) -> None:
        raise library.CputuneError("no /proc")

    monkeypatch.setattr("cputune.host.probing.probe", broken)
    ended = cputune("show")
    assert ended.code == 0
    golden(ended.out)


def test_the_trials_are_csv_a_line_each(cputune: Run, result: Result) -> None:
    ended = cputune("show", "--csv")
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    assert (ended.code, ended.err, len(rows)) == (0, "", len(result.trials))
    frame = result.to_frame()
    for row, trial in zip(rows, result.trials, strict=True):
        assert int(row["trial"]) == trial.number
        assert row["plan"] == trial.plan.short()
        rate = frame.loc[trial.number, "samples_per_second"]
        assert float(row["samples_per_second"] or "nan") == pytest.approx(rate, nan_ok=True)


def test_no_cell_is_a_formula(result: Result) -> None:
    first = replace(result.trials[0], reason='=cmd|"/c calc"!A1,\n"x"')
    text = trials_csv(replace(result, trials=(first, *result.trials[1:])))
    (row, *_) = list(csv.DictReader(io.StringIO(text)))
    assert row["reason"].startswith("'=cmd")


def test_a_result_is_markdown_for_an_issue(cputune: Run, golden: Golden) -> None:
    short, whole = (cputune("show", "--markdown", *more).out for more in ((), ("--all",)))
    golden(short)
    assert len(whole) > len(short)
    assert cputune("show", "--markdown", "--csv").code == 2
    assert cputune("show", "--json", "--csv").code == 2
