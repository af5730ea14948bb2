"""Results that were kept: private, bounded, and never in anybody's way."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from golden_texts import Golden
from tuner.fakes import SMALL, FakeRunner, truthful

import cputune
from cputune import Kept, Result, UsageError, kept_results
from cputune.records import history
from cputune.records.claims import Speedup
from cputune.records.history import keep, peak_bytes_before, result_path
from cputune.report.show import history_rows


@pytest.fixture(scope="module")
def result() -> Result:
    return cputune.tune(SMALL.workload, facts=SMALL.facts, runner=FakeRunner(truthful()), budget=2)


@pytest.fixture
def folder(workdir: Path, history: Path) -> Path:
    return history / "cputune" / "history"


def kept(result: Result, now: str = "20261121-193000") -> str:
    id = keep(result, now=now)
    assert id is not None
    return id


def test_a_study_ends_if_nothing_can_be_kept(result: Result, folder: Path) -> None:
    folder.parent.parent.write_text("a file, and no folder")
    assert keep(result, now="20261121-193000") is None


def test_only_the_user_can_read_it(result: Result, folder: Path) -> None:
    before = os.umask(0)
    try:
        kept(result)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_two_of_one_second_have_two_ids_and_the_newest_is_first(
    result: Result, folder: Path
) -> None:
    ids = [kept(result, now) for now in ("20261121-193000",) * 11 + ("20261120-080000",)]
    assert ids[:2] == ["20261121-193000", "20261121-193000-002"]
    assert [one.id for one in kept_results()] == [*ids[10::-1], ids[11]]
    assert result_path("last").stem == "20261121-193000-011"


def test_the_newest_result_says_what_a_rank_of_a_command_held(result: Result, folder: Path) -> None:
    def of(held: int, *argv: str) -> Result:
        ranks = [{"peak_bytes": held}, {"peak_bytes": held + 5}]
        trials = [replace(one, observed=tuple(ranks)) for one in result.trials]
        trials[0] = replace(trials[0], observed=({},))  # it ended before its ranks reported
        job = replace(result.workload, recipe=None, argv=argv)
        return replace(result, workload=job, trials=tuple(trials))

    keep(of(100, "train.py", "--lr", "1"), now="20261121-193000")
    keep(of(200, "train.py", "--lr", "1"), now="20261122-193000")
    keep(of(300, "train.py", "--lr", "2"), now="20261123-193000")
    for ranks in (result.trials[1].plan.processes_per_node, 77):
        assert peak_bytes_before(("train.py", "--lr", "1"), ranks) == 205
    assert peak_bytes_before(("other.py",), 1) is None
    (folder / "20261124-193000.json").write_text("{}")
    assert peak_bytes_before(("train.py", "--lr", "2"), 1) == 305


def test_an_id_may_be_cut_if_one_alone_begins_so(
    result: Result, folder: Path, golden: Golden
) -> None:
    for now in ("20261121-193000", "20261121-204500", "20261220-000000"):
        kept(result, now)
    assert result_path("202612").stem == "20261220-000000"
    assert result_path("20261121-193000").stem == "20261121-193000"
    with golden.raises(UsageError):
        result_path("20261121")
    with golden.raises(UsageError) as caught:
        result_path("1999")
    golden(caught.value.hint)


def test_a_bounded_number_is_kept(
    result: Result, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_KEPT", 3)
    for day in range(10, 16):
        kept(result, f"202611{day}-000000")
    assert [one.id[:8] for one in kept_results()] == ["20261115", "20261114", "20261113"]
    assert len(list(folder.iterdir())) == 3


def test_the_page_says_how_many_are_kept() -> None:
    page = (Path(__file__).parent.parent / "docs" / "getting-started.md").read_text()
    assert f"the newest {history.MOST_KEPT}." in page


def test_files_of_others_are_neither_listed_nor_removed(
    result: Result, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_KEPT", 1)
    folder.mkdir(parents=True)
    (folder / "notes.json").write_text("mine")
    (folder / "20200101-000000.json").symlink_to(folder / "notes.json")
    kept(result, "20261110-000000")
    assert [one.id for one in kept_results()] == ["20261110-000000"]
    assert (folder / "notes.json").read_text() == "mine"


def test_an_entry_that_is_damaged_is_listed_by_its_id(result: Result, folder: Path) -> None:
    id = kept(result)
    for text in ("{", "[]"):
        (folder / f"{id}.json").write_text(text)
        assert kept_results() == (Kept(id=id),)
    assert history_rows(kept_results()).rows == ((id, "not known", "not known", "not known"),)


def test_no_gain_is_reported_that_would_not_be_said(result: Result) -> None:
    wide = replace(result, speedup=Speedup(ratio=9, low=2, high=40, pairs=2))
    table = history_rows((Kept(id="1", result=wide), Kept(id="2", result=result)))
    assert [row[3].split()[0] for row in table.rows] == ["faster", "×2.56"]
