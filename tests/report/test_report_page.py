"""The page of a result: one file without the network, plain for whatever a result holds."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from in_process import ran
from report.result_cases import (
    CASES,
    HOSTILE,
    elsewhere,
    hostile,
    profiled,
    ten_thousand,
    tuned,
)

from cputune.errors import MissingPackageError
from cputune.report import page as page_module
from cputune.report.page import page, side_by_side, story, thinned, time_rows
from cputune.result import Result
from cputune.words import verdict_of


class Read(HTMLParser):
    """The elements of a page and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = self.prose = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], "elements that are not ended"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["script"], ["style"]):
            self.words += data
            self.prose += "" if "code" in self._open else data


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_study_gives_a_plain_page(case: Callable[[], Result]) -> None:
    result = case()
    text = page(result)
    read = Read(text)
    assert verdict_of(result, "").means in read.words
    assert result.baseline.plan.describe() in read.words
    headings = re.findall(r"<h2>([^<]+)</h2>", text)
    assert headings[-1] == "How it was measured, and how to do it again"
    for section in re.findall(r"<section><h2>.*?</h2>(.*?)</section>", text, re.S):
        assert Read(section).words.strip()
    assert len(text.encode()) < 200_000
    assert re.search(r"\b(nan|None|inf)\b", read.prose) is None
    lengths = [float(n) for n in re.findall(r"(?:width|left):([\d.e+-]+)%", text)]
    assert all(0 <= length <= 100 for length in lengths)


def test_today_and_best_are_marked_among_the_plans_and_the_best_stands_first() -> None:
    result = tuned()
    plans = story(result, "cputune.json")["plans"]
    assert plans[0]["marks"] == ["best"]
    assert [plan["marks"] for plan in plans].count(["today"]) == 1
    sure = [plan["confirmed"] for plan in plans]
    assert sure == sorted(sure, reverse=True)


def test_a_colour_means_one_thing() -> None:
    kinds = set(re.findall(r'class="fill (\w+)"', page(tuned())))
    assert kinds == {"today", "best", "other"}


def test_it_asks_no_network() -> None:
    read = Read(page(tuned()))
    assert not {"link", "iframe", "img", "object"} & set(read.tags)
    assert [value for name, value in read.attributes if name == "src"] == []
    assert all((v or "").startswith("https://") for name, v in read.attributes if name == "href")
    assert any("default-src 'none'" in (value or "") for _, value in read.attributes)


def test_nothing_in_a_result_becomes_part_of_the_page() -> None:
    result = hostile()
    read = Read(page(result, HOSTILE))
    assert read.tags.count("script") == 1
    assert "img" not in read.tags
    assert not any(name.startswith("on") for name, _ in read.attributes)
    assert "\x1b" not in read.words
    assert "\u202e" not in read.words
    assert "alert(1)" in read.words


def test_a_link_leads_to_the_web_and_nowhere_else() -> None:
    result = tuned()
    assert result.findings
    found = replace(result.findings[0], source="javascript:alert(1), https://example.org/x")
    read = Read(page(replace(result, findings=(found,))))
    links = [value for name, value in read.attributes if name == "href"]
    assert links == ["https://example.org/x"]


def test_of_many_trials_it_says_how_many_it_shows() -> None:
    assert re.search(r"99[67]\d trials are not shown here", Read(page(ten_thousand())).words)


def test_what_is_thinned_keeps_both_ends() -> None:
    assert thinned(range(10), 4) == [0, 3, 6, 9]
    assert thinned(range(3), 4) == [0, 1, 2]


def test_every_core_is_drawn_with_who_has_it() -> None:
    result = tuned()
    drawn = re.search(r'<pre class="machine"[^>]*>(.*?)</pre>', page(result), re.S)
    assert drawn
    rows = "".join(line for line in drawn[1].splitlines() if line.startswith("  "))
    cores = [set(core) for place in result.places for core in place.cores]
    for rank, cpus in enumerate(result.best.plan.cpus):
        assert rows.count(str(rank)) == sum(not core.isdisjoint(cpus) for core in cores)
    assert max(map(len, drawn[1].splitlines())) <= 40
    assert "; rank 1: CPUs " in drawn[0]


def test_what_the_result_does_not_hold_is_said() -> None:
    read = Read(page(elsewhere()))
    assert "the result does not say which the machine has" in read.words
    assert "nobody asked the doctor" in read.words


def test_the_time_of_a_step_is_told_before_and_after() -> None:
    table = time_rows(profiled())
    assert table.headings == ("", "today", "best")
    told = {what: (today, best) for what, today, best in table.rows}
    assert list(told)[1] == "matrix products"
    assert told["all-reduce"][0] == "0 ms (0%)"
    assert "padding" not in told


def test_of_a_machine_that_was_not_quiet_no_plan_is_called_the_best() -> None:
    text = page(replace(tuned(), disturbed=True))
    assert "times" not in text[text.index("<h1>") : text.index("</h1>")]
    assert "perhaps faster" in text
    assert 'class="mark best"' not in text


def test_every_plan_that_was_confirmed_has_its_steps_as_a_line_with_the_median() -> None:
    result = tuned()
    lines = story(result, "cputune.json")["lines"]
    late = sum(len(turn.delayed) for run in result.confirmation for turn in run.taken)
    steps = sum(len(turn.step_seconds) for run in result.confirmation for turn in run.taken)
    assert {line["plan"] for line in lines} == {p.describe() for p in side_by_side(result)}
    assert sum(line["steps"] for line in lines) == steps
    assert sum(line["delayed"] for line in lines) == late > 0
    assert page(result).count("<polyline") == len(lines)


def test_what_was_left_out_is_said_once_what_a_command_brings_in_first() -> None:
    said = story(tuned(), "cputune.json")["left_out"]
    assert len(set(said)) == len(said) > 3
    assert any(word in said[0][1] for word in ("--knobs", "apt-get", "pip install"))


def test_without_jinja2_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="the report needs jinja2, which is not") as error:
        page(tuned())
    assert error.value.hint == "pip install 'cputune[search]'"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cputune", "report", *words]
    return ran(argv, cwd=folder)


def test_the_command_writes_one_file_and_replaces_none(tmp_path: Path) -> None:
    tuned().save(tmp_path / "cputune.json")
    first = run(tmp_path)
    assert (first.returncode, first.stdout) == (0, "")
    assert "wrote report.html" in first.stderr
    again = run(tmp_path)
    assert again.returncode == 2
    assert "hint: give --force to replace it" in again.stderr
    assert run(tmp_path, "--force", "-q").stderr == ""
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cputune.json", "report.html"]
