"""Every way a study can end: a ratio is said where pairs were measured, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from golden_texts import Golden
from rows import every_row
from tuner.fakes import SMALL, VARIED, FakeKeepingRunner, tune

import cputune
from cputune import Plan, Result, Step
from cputune.emitters.from_result import tuned_of
from cputune.emitters.header import measured
from cputune.records.claims import ClaimContext
from cputune.records.shared_texts import verdict_of
from cputune.records.steps import Crashed, HostLost, OutOfMemory, TimedOut, TimeUp
from cputune.report.show import ResultToShow, document

CRASH = Crashed("rank 0 died: exit code 134", details="loading\nbad port 29500\n")


class End(NamedTuple):
    """What befalls whom: ``life`` counts the processes of a plan, 0 are those of its trial."""

    error: BaseException | None = None
    who: str = "others"
    life: int = 1
    step: int = 0
    why: str = ""
    options: Mapping[str, Any] = MappingProxyType({})
    delayed: float = 0.0

    def befalls(self, plan: Plan, life: int) -> bool:
        """Whether these processes come to that end."""
        concerned = self.who == "all" or plan.as_found is (self.who == "today")
        return concerned and life >= self.life


def run(end: End) -> Result:
    """The result of a study that ends so."""

    def script(plan: Plan, life: int) -> Iterator[Step]:
        at = 0
        while True:
            if end.error is not None and at == end.step and end.befalls(plan, life):
                raise end.error
            yield Step(seconds=SMALL.seconds(plan), samples=8, delayed_seconds=end.delayed)
            at += 1

    try:
        return tune(FakeKeepingRunner(script), **{"budget": 4, "knobs": VARIED, **end.options})
    except (cputune.Interrupted, cputune.NotMeasurableError) as error:
        return error.result


AGAIN = "when restarted"
ENDS = {
    "today crashes at once in the second block": End(CRASH, "today", why=AGAIN),
    "today crashes in its third turn": End(CRASH, "today", step=4, why=AGAIN),
    "today has no memory beside the other": End(OutOfMemory("killed"), "today", why=AGAIN),
    "today hangs": End(TimedOut("no step for 60 s"), "today", why=AGAIN),
    "all rivals crash in the second block": End(CRASH, why=AGAIN),
    "all rivals crash in the first block": End(CRASH, life=0, step=12, why=AGAIN),
    "all rivals crash late": End(CRASH, step=4, why=AGAIN),
    "all other trials fail": End(CRASH, life=0, why="every other plan failed: rank 0 died"),
    "the runner dies with an error of its own": End(RuntimeError("gone"), "all", why=AGAIN),
    "a host is lost": End(HostLost("node2", "no route"), why="node2 was lost"),
    "the time is up in the second block": End(TimeUp("while importing torch"), "all", why="twice"),
    "there is time for today alone": End(why="time", options={"max_time_seconds": 6.0}),
    "there is time for a trial or two": End(why="time", options={"max_time_seconds": 8.0}),
    "interrupted in the second block": End(KeyboardInterrupt(), why="interrupted"),
    "interrupted in a trial": End(KeyboardInterrupt(), life=0, step=2, why="interrupted"),
    "one trial was asked for": End(why="only one plan", options={"budget": 1}),
    "others compute here": End(delayed=0.5, why="other processes delayed"),
    "others compute here, and that is known": End(
        delayed=0.5, why="other processes delayed", options={"share_machine": True}
    ),
}


@every_row("end", ENDS.values(), ids=ENDS.keys())
def test_without_pairs_nothing_is_claimed(end: End) -> None:
    result = run(end)
    assert result.speedup is None
    assert end.why in str(result.not_compared)
    if not result.disturbed:
        assert result.best == result.baseline
        assert result.best.plan.as_found
    verdict = verdict_of(result, "cputune run cputune.json")
    assert verdict.do
    assert "cputune run" not in verdict.do
    found = result.claim.in_context(ClaimContext())
    header = measured(tuned_of(result), result.best.plan, found)
    said = " ".join((*verdict.lines(), *header, *result.notes))
    assert "times as fast" not in said
    assert "interval" not in said
    assert document(ResultToShow(result=result))["speedup"] is None
    assert result.to_json()["speedup"] is None
    assert result.to_json()["not_compared"] == result.not_compared


def test_the_last_line_of_what_crashed_is_said(golden: Golden) -> None:
    result = run(ENDS["today crashes at once in the second block"])
    golden(str(result.not_compared))
