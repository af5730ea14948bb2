"""The result document: written, read back, refused where it is not ours."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confirmed import confirmed
from golden_texts import Golden
from rows import every_row
from tuner.fakes import SMALL, FakeRunner, truthful

import cputune
from cputune import Result, ResultError, UsageError
from cputune.records.claims import Speedup
from cputune.records.result import pairs_of


@pytest.fixture(scope="module")
def result() -> Result:
    return cputune.tune(SMALL.workload, facts=SMALL.facts, runner=FakeRunner(truthful()), budget=3)


@every_row(
    ("text", "message"),
    [
        ('{"schema": "cputune.result/5"}', "schema 5; this cputune reads 4"),
        ('{"schema": "cputune.result/3"}', "schema 3; this cputune reads 4"),
    ],
)
def test_what_is_not_a_result_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(ResultError, match=message) as caught:
        Result.load(file)
    assert caught.value.hint


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(ResultError, match="not a regular file"):
            Result.load(path)


def test_hosts_are_kept_in_their_order(result: Result) -> None:
    there = replace(result, hosts=("node2", "fd00::1"))
    assert Result.from_json(json.loads(json.dumps(there.to_json()))).hosts == ("node2", "fd00::1")


class TestARatioNeedsItsPairs:
    """No record holds a ratio that its confirmation does not bear, wherever it comes from."""

    @every_row(
        "changed",
        [
            {"speedup": Speedup(ratio=2, low=1.9, high=2.1)},
            {"speedup": None},
            {"disturbed": True},
        ],
    )
    def test_one_without_cannot_be_made(self, result: Result, changed: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="speedup"):
            replace(result, **changed)

    def test_one_that_a_file_holds_without_pairs_is_not_read(
        self, result: Result, golden: Golden
    ) -> None:
        document = {**result.to_json(), "confirmation": []}
        read = Result.from_json(document)
        assert (read.speedup, read.best) == (None, result.best)
        golden(read.not_compared)
        assert read.to_json()["speedup"] is None

    def test_nor_with_one_block_or_with_processes_of_trials_alone(self, result: Result) -> None:
        today, best = result.baseline.plan, result.best.plan
        assert pairs_of(confirmed(today, best, blocks=2), today, best) == 10
        assert pairs_of(confirmed(today, best, blocks=1), today, best) == 0
        old = [replace(run, kept=True) for run in confirmed(today, best, blocks=2)]
        assert pairs_of(old, today, best) == 0
        fell = [
            replace(run, samples_per_second=None) if run.round and run.plan == best else run
            for run in confirmed(today, best, blocks=2)
        ]
        assert pairs_of(fell, today, best) == 0


def test_save_and_load_are_each_others_inverse(result: Result, tmp_path: Path) -> None:
    file = tmp_path / "cputune.json"
    result.save(file)
    assert Result.load(file) == result
    result.save(file)
    file.write_text("notes of my own\n")
    with pytest.raises(UsageError, match="exists already"):
        result.save(file)
    result.save(file, force=True)


@every_row(
    ("way", "value"),
    [
        (("best", "samples_per_second", "centre"), float("nan")),
        (("speedup", "ratio"), float("inf")),
        (("best", "plan", "threads_per_process"), 10**9),
        (("notes",), "a sentence"),
        (("trials", 0, "state"), "lost"),
        (("trials", 0, "steps"), -1),
        (("best", "plan", "frobnicate"), 1),
    ],
)
def test_what_cannot_be_is_refused(result: Result, way: tuple[str | int, ...], value: Any) -> None:
    document = part = result.to_json()
    for key in way[:-1]:
        part = part[key]  # type: ignore[index]
    part[way[-1]] = value  # type: ignore[index]
    with pytest.raises(ResultError, match="damaged"):
        Result.from_json(document)
