"""The trials as a table: a row for each, documented columns, and a DataFrame of them."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cputune.errors import MissingPackageError
from cputune.result import Result, trial_rows

PAGE = (Path(__file__).parent.parent / "docs" / "library.md").read_text()


def test_a_row_for_each_trial_with_every_column(result: Result) -> None:
    rows = trial_rows(result)
    assert [row["trial"] for row in rows] == [trial.number for trial in result.trials]
    first = rows[0]
    assert (first["ranks"], first["threads"], first["cpus"]) == (1, 2, "0-1")
    assert (first["precision"], first["as_found"], first["best"]) == ("fp32", True, False)
    assert sum(row["best"] is True for row in rows) == 1


def test_what_was_not_measured_is_empty(result: Result) -> None:
    failed = replace(result.trials[0], state="failed", samples_per_second=None)
    (row,) = trial_rows(replace(result, trials=(failed,)))
    assert (row["samples_per_second"], row["low"], row["high"]) == (None, None, None)


def test_the_page_tells_every_column(result: Result) -> None:
    page = PAGE.partition("## A table of the trials")[2].partition("\n## ")[0]
    table, _, knobs = page.partition("Behind these stands")
    told, columns = re.findall(r"^\| `(\w+)` \|", table, re.M), list(trial_rows(result)[0])
    assert told == columns[: len(told)]
    assert told[-1] == "best"
    assert set(re.findall(r"`(\w+)`", knobs)) <= set(columns[len(told) :])


def test_a_frame_has_numbers_where_there_are_numbers(result: Result) -> None:
    pytest.importorskip("pandas")
    frame = result.to_frame()
    assert len(frame) == len(result.trials)
    assert frame["samples_per_second"].dtype == float
    assert frame.loc[frame["best"], "plan"].item() == result.best.plan.describe()


def test_without_pandas_it_is_said_what_to_install(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="needs pandas") as caught:
        result.to_frame()
    assert caught.value.hint == "pip install 'cputune[frame]'"
