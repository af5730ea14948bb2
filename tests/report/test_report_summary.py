"""What a result says, before it is drawn anywhere."""

from __future__ import annotations

from dataclasses import replace

from confirmed import BUSY, UNCOMPARED
from golden_texts import Golden

from cputune import Result
from cputune.records.claims import Speedup
from cputune.records.result import Measured, Throughput, Worth
from cputune.report.show import ResultToShow, changes_of, document

RATE = Throughput(centre=10.0, low=9.5, high=10.5)


def faster(result: Result, **changed: object) -> Result:
    """The result whose best plan is today's with some fields changed."""
    plan = replace(result.baseline.plan, as_found=False, **changed)  # type: ignore[arg-type]
    best = Measured(plan=plan, samples_per_second=RATE)
    return replace(result, best=best, worth=(), **UNCOMPARED)


def gain(knob: str, ratio: float, *, high: float | None = None) -> Worth:
    speedup = Speedup(ratio=ratio, low=ratio * 0.98, high=high or ratio * 1.02)
    return Worth(knob=knob, value="", speedup=speedup)


def test_the_layout_is_one_change_and_names_cpus_if_nothing_else_differs(
    result: Result, golden: Golden
) -> None:
    ranks = faster(result, processes_per_node=2, threads_per_process=1, cpus=((0,), (1,)))
    assert [(c.knob, c.baseline, c.best) for c in changes_of(ranks)] == [
        ("layout", "1 × 2 threads", "2 × 1 thread")
    ]
    (moved,) = changes_of(faster(result, cpus=((2, 3),)))
    golden(moved.best)


def test_how_ranks_agree_is_a_change_if_there_are_several_before_and_after(
    result: Result,
) -> None:
    two = faster(result, processes_per_node=2, threads_per_process=1, cpus=((0,), (1,)))
    oneccl = replace(two.best.plan, backend="ccl", ccl_workers=1)
    both = replace(two, baseline=two.best, best=replace(two.best, plan=oneccl))
    changes = [(c.knob, c.best) for c in changes_of(both)]
    assert changes == [("backend", "ccl"), ("ccl_workers", "1")]
    from_one = replace(both, baseline=result.baseline)
    assert [c.knob for c in changes_of(from_one)] == ["layout"]


def test_no_factor_is_said_of_what_was_disturbed_or_is_not_known_well(result: Result) -> None:
    best = faster(result, precision="bf16")
    wide = replace(best, worth=(gain("precision", 2.0, high=9.0),))
    loud = replace(best, worth=(gain("precision", 2.0),), **BUSY)
    assert [c.worth for c in (*changes_of(wide), *changes_of(loud))] == [None, None]
    told = document(ResultToShow(result=loud))
    assert (told["speedup"], told["outcome"]) == (None, "not_compared")
