"""What a plan gains for each kind of change in the training, and how one of them is chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from golden_texts import Golden
from in_process import Run
from report.result_cases import tuned, with_best
from rows import every_row
from tuner.fakes import SMALL

import cputune
from cputune import Result
from cputune.cli.run import command as run_command
from cputune.plans.equivalence import ModelAnswers, Training
from cputune.plans.knobs import kind_between
from cputune.records.claims import Speedup, host_fingerprint
from cputune.records.ladder import keeping, ladder_of
from cputune.records.result import Rung


def climbed() -> Result:
    """Malloc keeps its memory, then two ranks, then bf16."""
    result = tuned()
    today = result.baseline.plan
    kept = today.with_setting("malloc", "kept")
    ranks = replace(kept, processes_per_node=2, threads_per_process=1, cpus=((0,), (1,)))
    bf16 = replace(ranks, precision="bf16", as_found=False)
    kept, ranks = (replace(plan, as_found=False) for plan in (kept, ranks))
    steps = zip((kept, ranks, bf16), (1.24, 1.71, 2.56), strict=True)
    rungs = tuple(
        Rung(
            kind=kind_between(today, plan),
            plan=plan,
            speedup=Speedup(ratio=ratio, low=0.95 * ratio, high=1.05 * ratio, pairs=9),
        )
        for plan, ratio in steps
    )
    return replace(
        with_best(result, bf16),
        host=host_fingerprint(SMALL.facts),
        speedup=replace(rungs[-1].speedup, pairs=result.speedup.pairs),
        rungs=rungs,
        worth=(),
    )


def test_a_gain_that_is_not_certain_is_called_undecided() -> None:
    result = climbed()
    first, *others = result.rungs
    wide = replace(first, speedup=Speedup(ratio=1.14, low=0.98, high=1.32, pairs=9))
    lines = ladder_of(replace(result, rungs=(wide, *others)))
    assert lines[0].startswith("×1.14 (0.98–1.32) undecided, changing nothing")
    assert "undecided" not in lines[1]


def test_what_was_checked_is_said_with_its_limit(golden: Golden) -> None:
    result = climbed()
    seen = replace(result.workload, training=Training(), model_answers=ModelAnswers(updates=24))
    line = ladder_of(replace(result, workload=seen))[1]
    golden(line)
    script = replace(seen, recipe=None, argv=("train.py",))
    line = ladder_of(replace(result, workload=script))[1]
    golden(line)


@every_row(("keep", "number"), [("numbers", 0), ("mathematics", 1), ("distribution", 2), (None, 2)])
def test_a_launch_can_leave_out_what_changes_more(keep: str | None, number: int) -> None:
    result = climbed()
    plan = result.rungs[number].plan
    assert keeping(result, keep).best.plan == plan
    text = cputune.emit(result, "torchrun", facts=SMALL.facts, keep=keep)[0].text
    assert ("bf16" in text) is (number == 2)
    assert ("2.56 times" in text) is (number == 2)
    if number < 2:
        ratio = f"{result.rungs[number].speedup.ratio:.2f}"
        assert keeping(result, keep).outcome == "not_compared"
        assert ratio in str(keeping(result, keep).not_compared)


def test_what_was_never_compared_is_the_launch_as_it_was() -> None:
    result = replace(climbed(), rungs=())
    assert keeping(result, "numbers").best.plan == result.baseline.plan


def test_run_takes_the_same_word() -> None:
    (option,) = (option for option in run_command.params if option.name == "keep")
    assert list(option.type.choices) == ["numbers", "mathematics"]


def test_the_word_of_emit_reaches_the_plan(cputune: Run, tmp_path: Path) -> None:
    climbed().save(tmp_path / "r.json")
    words = ("emit", str(tmp_path / "r.json"), "--other-machine", "-f", "torchrun", "-o", "-")
    assert "bf16" in cputune(*words).out
    kept = cputune(*words, "--keep", "mathematics")
    assert kept.code == 0
    assert "bf16" not in kept.out
