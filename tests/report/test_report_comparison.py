"""Two results beside each other: what is said of a ratio, and in what they differ."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from golden_texts import Golden
from report.result_cases import printed

from cputune import Comparison, Result, Workload
from cputune.records.claims import Speedup
from cputune.records.result import Throughput
from cputune.report.result_comparison import (
    ComparisonToShow,
    blocks,
    differences,
    document,
    slower,
    verdict,
)

RATE = Throughput(centre=10.0, low=9.8, high=10.2)


def shown(result: Result, ratio: float | None, *, alone: bool = False) -> ComparisonToShow:
    """A comparison of which this came, plus or minus 2 %."""
    speedup = None
    if ratio is not None:
        speedup = Speedup(ratio=ratio, low=ratio * 0.98, high=ratio * 1.02, pairs=12)
    found = Comparison(
        before=result.baseline.plan,
        after=result.best.plan,
        speedup=speedup,
        not_compared=None if speedup else "the second is of another machine",
        before_rate=RATE if speedup else None,
        after_rate=RATE if speedup else None,
    )
    after = None if alone else replace(result, created="2026-11-22T08:00:00+00:00")
    return ComparisonToShow(comparison=found, before=result, after=after, first="a", second="b")


@pytest.mark.parametrize(
    ("ratio", "means", "do"),
    [
        (1.2, "The plan of b is 1.20 times as fast as the plan of a: an hour", "cputune run b"),
        (0.8, "The plan of b is 0.80 times as fast as the plan of a: an hour", "cputune run a"),
        (1.0, "The plan of b is as fast as the plan of a, within 5%.", "nothing: keep"),
        (None, "The plan of b was not compared with the plan of a: the second", "cputune tune"),
    ],
)
def test_what_it_means_and_what_to_do_stand_first(
    result: Result, ratio: float | None, means: str, do: str
) -> None:
    said = verdict(shown(result, ratio))
    assert said.means.startswith(means)
    assert said.do.startswith(do)
    sure = "12 pairs side by side on this machine now" if ratio else "nothing was measured"
    assert said.sure.endswith(sure)


@pytest.mark.parametrize(("ratio", "do"), [(1.2, "cputune run a"), (0.8, "cputune tune")])
def test_one_alone_is_compared_with_the_baseline(result: Result, ratio: float, do: str) -> None:
    said = verdict(shown(result, ratio, alone=True))
    assert said.means.startswith(f"The best plan of a is {ratio:.2f} times as fast as your")
    assert said.do.startswith(do)


@pytest.mark.parametrize(
    ("ratio", "share", "fails"),
    [(0.9, 0.05, True), (0.95, 0.05, False), (0.9, 0.1, False), (1.2, 0.0, False)],
)
def test_a_loss_counts_if_the_whole_interval_lies_beyond_it(
    result: Result, ratio: float, share: float, fails: bool
) -> None:
    assert bool(slower(shown(result, ratio), share)) is fails


def test_without_pairs_there_is_no_figure_of_speed(result: Result) -> None:
    said = printed(blocks(shown(result, None)))
    assert "samples/s" not in said
    assert "times as fast" not in said


def test_what_differs_is_listed(result: Result, golden: Golden) -> None:
    cores = {**result.host["topology"], "physical_cores": 64, "allowed": "0"}

    def script(*words: str, **fields: Any) -> Result:
        return replace(result, workload=Workload(name="t.py", argv=("t.py", *words), **fields))

    a = script("--epochs", "3", global_batch_size=8)
    b = replace(
        script("--epochs", "4", global_batch_size=16),
        host={**result.host, "topology": cores},
        data="squad",
        versions={**result.versions, "torch": "9.9"},
    )
    golden(differences(a, b))
    assert differences(a, a) == ()


def test_a_machine_that_does_not_name_itself_is_not_taken_for_the_same(
    result: Result, golden: Golden
) -> None:
    silent = replace(result, host={"topology": result.host["topology"]})
    for a, b in ((result, silent), (silent, result)):
        golden(differences(a, b)[0])


def test_the_document_has_both_plans_and_the_ratio(result: Result) -> None:
    told = json.loads(json.dumps(document(shown(result, 1.2)), allow_nan=False))
    assert told["speedup"]["outcome"] == "faster"
    assert (told["before"]["name"], told["after"]["name"]) == ("the plan of a", "the plan of b")
    untold = document(shown(result, None))
    assert (untold["speedup"], untold["not_compared"]) == (None, "the second is of another machine")
