"""What a result says, before it is drawn anywhere."""

from __future__ import annotations

from dataclasses import replace

from confirmed import BUSY, UNCOMPARED
from golden_texts import Golden

from cputune import Result
from cputune.records.claims import Speedup
from cputune.records.result import Measured, Throughput, Worth
from cputune.report.show import ResultToShow, basis, changes_of, document

RATE = Throughput(centre=10.0, low=9.5, high=10.5)


def faster(result: Result, **changed: object) -> Result:
    """The result whose best plan is today's with some fields changed."""
    plan = replace(result.baseline.plan, as_found=False, **changed)  # type: ignore[arg-type]
    best = Measured(plan=plan, samples_per_second=RATE)
    return replace(result, best=best, worth=(), **UNCOMPARED)


def gain(knob: str, ratio: float, *, high: float | None = None) -> Worth:
    speedup = Speedup(ratio=ratio, low=ratio * 0.98, high=high or ratio * 1.02)
    return Worth(knob=knob, value="", speedup=speedup)


def test_a_change_has_its_value_of_today_and_of_the_best_plan(result: Result) -> None:
    found = changes_of(faster(result, precision="bf16", settings={"workers": 2}))
    assert [(c.knob, c.today, c.best, c.worth) for c in found] == [
        ("precision", "fp32", "bf16", None),
        ("workers", "default", "2", None),
    ]


def test_changes_stand_together_if_they_were_measured_together(result: Result) -> None:
    best = faster(result, precision="bf16", allocator="tcmalloc", openmp="libiomp5")
    worth = (gain("allocator, openmp", 1.2), gain("precision", 2.0))
    both, precision = changes_of(replace(best, worth=worth))
    assert (both.knob, both.best) == ("allocator, openmp", "tcmalloc, libiomp5")
    assert both.worth is not None
    assert both.worth.ratio == 1.2
    assert (precision.knob, precision.today, precision.best) == ("precision", "fp32", "bf16")


def test_the_layout_is_one_change_and_names_cpus_if_nothing_else_differs(
    result: Result, golden: Golden
) -> None:
    ranks = faster(result, processes_per_node=2, threads_per_process=1, cpus=((0,), (1,)))
    assert [(c.knob, c.today, c.best) for c in changes_of(ranks)] == [
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
    assert [(c.knob, c.best) for c in changes_of(both)] == [
        ("backend", "ccl"),
        ("ccl_workers", "1"),
    ]
    from_one = replace(both, baseline=result.baseline)
    assert [c.knob for c in changes_of(from_one)] == ["layout"]


def test_no_factor_is_said_of_what_was_disturbed_or_is_not_known_well(result: Result) -> None:
    best = faster(result, precision="bf16")
    wide = replace(best, worth=(gain("precision", 2.0, high=9.0),))
    loud = replace(best, worth=(gain("precision", 2.0),), **BUSY)
    assert [c.worth for c in (*changes_of(wide), *changes_of(loud))] == [None, None]
    told = document(ResultToShow(result=loud))
    assert (told["speedup"], told["outcome"]) == (None, "not_compared")


def test_what_a_result_rests_on(result: Result, golden: Golden) -> None:
    told = dict(basis(result))
    assert told["allowed CPUs"] == "0-1"
    assert told["batch"] == f"{result.workload.global_batch_size} samples per step"
    assert told["trials"].startswith(f"{len(result.trials)} (")
    golden(told["search"])
    assert " pairs, " in told["side by side"]
    alone = dict(basis(replace(result, confirmation=(), host={"cpu": 3}, **UNCOMPARED)))
    assert alone["side by side"].startswith("not confirmed")
    golden(alone["machine"])
    assert "allowed CPUs" not in alone


def test_runs_without_a_speed_are_named_by_what_ended_them(result: Result) -> None:
    first, *others = result.confirmation
    reasons = (
        "not measured: the comparison ended before",
        "not measured: the comparison ended before",
        "contended: other processes delayed its steps",
        "rank 0 ended with SIGSEGV",
    )
    ended = [replace(first, samples_per_second=None, reason=reason) for reason in reasons]
    told = dict(basis(replace(result, confirmation=(first, *ended, *others))))
    assert told["side by side"].endswith(", 2 not measured, 1 delayed by others, 1 failed")
