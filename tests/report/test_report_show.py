"""``show`` of good, odd and hostile results, in each of its forms."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from report.result_cases import CASES, hostile, printed, tuned
from rows import every_row
from tuner.fakes import SMALL

from cputune import Result
from cputune.records.shared_texts import OTHERS_MAY_BE_FASTER
from cputune.report.answer import MOST_LINES, end_blocks
from cputune.report.show import ResultToShow, blocks, document


def both_forms(result: Result) -> tuple[str, str]:
    shown = ResultToShow(result=result, file="cputune.json", facts=SMALL.facts)
    json_text = json.dumps(document(shown), ensure_ascii=False, allow_nan=False)
    return printed(blocks(shown), 100), json_text


def test_the_terminal_says_what_to_change_and_how(result: Result) -> None:
    shown = ResultToShow(result=result, file="my results.json", facts=SMALL.facts)
    text = printed(blocks(shown), 100)
    assert text.startswith("2.56 times as fast as your current launch")
    assert "cputune run 'my results.json'" in text
    assert "OMP_NUM_THREADS=2" in text
    for heading in ("What to change", "The launch", "The plans", "Measured on"):
        assert f"\n\n{heading}\n" in text
    assert f"{result.speedup.pairs} pairs" in text


@pytest.mark.parametrize("width", [40, 80, 140])
def test_nothing_is_lost_in_a_narrow_terminal(result: Result, width: int) -> None:
    assert "…" not in printed(blocks(ResultToShow(result=result, file="r.json")), width)


@every_row("case", CASES.values(), ids=CASES.keys())
def test_the_answer_has_24_lines_of_eighty_columns(case: Callable[[], Result]) -> None:
    text = printed(end_blocks(ResultToShow(result=case())), 80)
    assert text.count("\n") <= MOST_LINES
    pasted = ("Do now ", "or ", "Surer ", "$ ")  # a command that is wrapped cannot be pasted
    assert all(len(line) <= 80 or line.startswith(pasted) for line in text.splitlines())
    assert "…" not in text
    asked = ["Result", "Measured", "Do", "Training", "How sure", "Surer", "all of it", "page"]
    labels = [line[:9].strip().removesuffix(" now") for line in text.splitlines()]
    assert [label for label in labels if label in asked] == [one for one in asked if one in labels]
    assert {"Result", "Do", "How sure"} <= set(labels)


def test_plans_for_which_the_time_was_too_short_are_in_the_answer() -> None:
    do = "cputune tune --max-time 5m -- train.py"
    note = f"The time was enough to try 1 of 128 plans{OTHERS_MAY_BE_FASTER}{do}"
    text = printed(end_blocks(ResultToShow(result=replace(tuned(), notes=(note,)))), 80)
    assert f"Not tried  the time was enough to try 1 of 128 plans\n$          {do}\n" in text


@every_row("case", CASES.values(), ids=CASES.keys())
def test_every_study_is_shown_in_both_forms(case: Callable[[], Result]) -> None:
    terminal, text = both_forms(case())
    assert terminal.count("\n") > 10
    assert json.loads(text)["schema"] == "cputune.summary/1"


def test_hostile_text_is_text() -> None:
    terminal, _ = both_forms(hostile())
    assert "\x1b" not in terminal
    assert "\u202e" not in terminal
