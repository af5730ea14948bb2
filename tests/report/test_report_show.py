"""``show`` of good, odd and hostile results, in each of its forms."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from report.result_cases import CASES, hostile, profiled, tuned
from rich.console import Console
from tuner.fakes import SMALL

from cputune.report.show import ResultToShow, blocks, document, time_rows
from cputune.report.writing import print_blocks
from cputune.result import Result

EVIL = "<script>alert(1)</script>\x1b[2J\n=cmd|' /C calc'!A0\u202e[red]|`*_"


def in_terminal(shown: ResultToShow, width: int = 100, **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    print_blocks(blocks(shown, **options), console)
    return out.getvalue()


def both_forms(result: Result) -> tuple[str, str]:
    shown = ResultToShow(result=result, file="cputune.json", facts=SMALL.facts)
    json_text = json.dumps(document(shown), ensure_ascii=False, allow_nan=False)
    return in_terminal(shown), json_text


def test_the_terminal_says_what_to_change_and_how(result: Result) -> None:
    text = in_terminal(ResultToShow(result=result, file="my results.json", facts=SMALL.facts))
    assert text.startswith("2.56 times as fast as today's launch")
    assert "cputune run 'my results.json'" in text
    assert "OMP_NUM_THREADS=2" in text
    for heading in ("What to change", "The launch", "The plans", "What it rests on"):
        assert f"\n\n{heading}\n" in text
    assert f"{result.speedup.pairs} pairs" in text


def test_a_command_stays_in_one_line_and_the_rest_within_the_width(result: Result) -> None:
    lines = in_terminal(ResultToShow(result=result, file="x" * 90), width=80).splitlines()
    assert f"train         cputune run {'x' * 90}" in lines
    pasted = ("Do now", "train", "launch", "variables", "flags")
    assert all(len(line) <= 80 for line in lines if not line.startswith(pasted))


@pytest.mark.parametrize("width", [40, 80, 140])
def test_nothing_is_lost_in_a_narrow_terminal(result: Result, width: int) -> None:
    text = in_terminal(ResultToShow(result=result, file="r.json"), width=width)
    assert "…" not in text


def test_the_fastest_plans_are_shown_and_all_on_demand(result: Result) -> None:
    many = replace(
        result,
        trials=tuple(replace(result.trials[0], number=number) for number in range(10_000)),
    )
    shown = ResultToShow(result=many, file="r.json")
    text = in_terminal(shown)
    assert "9985 slower ones are not shown: cputune show --all" in text
    assert len(text.splitlines()) < 80
    some = replace(shown, result=replace(many, trials=many.trials[:40]))
    assert in_terminal(some, most=None).count("1×2 fp32 (today)") > 40


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_study_is_shown_in_both_forms(case: Callable[[], Result]) -> None:
    terminal, text = both_forms(case())
    assert terminal.count("\n") > 10
    assert json.loads(text)["schema"] == "cputune.summary/1"


def test_hostile_text_is_text() -> None:
    terminal, _ = both_forms(hostile())
    assert "\x1b" not in terminal
    assert "\u202e" not in terminal


def test_a_result_of_another_machine_is_called_so(result: Result) -> None:
    other = replace(SMALL.facts, cpu=replace(SMALL.facts.cpu, model_name="another"))
    text = in_terminal(ResultToShow(result=result, file="r.json", facts=other))
    assert "note: This was measured on another machine: processor Simulated there" in text
    assert "another machine" not in in_terminal(ResultToShow(result=result, facts=SMALL.facts))


def test_the_time_of_a_step_is_told_by_what_it_is_spent_on() -> None:
    table = time_rows(profiled())
    assert table.headings == ("", "best")
    assert [what for what, _ in table.rows][1:3] == ["matrix products", "all-reduce"]
    assert table.rows[1][1].endswith("(44%)")


def test_what_was_left_out_is_said_on_demand() -> None:
    assert "Left out, and why" in in_terminal(ResultToShow(result=tuned()), every=True)
    assert "Left out, and why" not in in_terminal(ResultToShow(result=tuned()))
