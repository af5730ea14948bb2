"""The page of a result: one file without the network, plain for whatever a result holds."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from confirmed import BUSY
from golden_texts import Golden
from in_process import Run, ran
from report.result_cases import CASES, HOSTILE, a_thousand, hostile, profiled, tuned
from rows import like_others

from cputune import MissingPackageError, Result
from cputune.records.result import WIDTH
from cputune.records.shared_texts import verdict_of
from cputune.report import page as page_module
from cputune.report.figures import canvas
from cputune.report.page import page

# One worker has them all: each case is tuned and drawn once.
pytestmark = pytest.mark.xdist_group("page")


@cache
def page_of(case: Callable[[], Result]) -> str:
    """The page of a case, drawn once."""
    return page(case())


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
    result, text = case(), page_of(case)
    read = Read(text)
    assert verdict_of(result, "").means in read.words
    assert result.baseline.plan.short() in read.words
    headings = re.findall(r"<h2>([^<]+)</h2>", text)
    assert headings[-1] == "How it was measured"
    for section in re.findall(r"<section><h2>.*?</h2>(.*?)</section>", text, re.S):
        assert Read(section).words.strip()
    assert len(text.encode()) < 600_000
    assert re.search(r"\b(nan|None|inf)\b", read.prose) is None


def test_every_picture_is_there_for_desk_and_telephone() -> None:
    text = page_of(profiled)
    for name in ("change", "step", "comparison", "machine", "trials"):
        for kind in ("desk", "phone"):
            assert f'id="{name}-{kind}-figure_1"' in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert text.count("aria-label=") >= 5


def test_a_colour_means_one_thing() -> None:
    text = page_of(tuned)
    for role in ("baseline", "best", "other", "lost", "ink", "dim", "line"):
        assert text.count(f"--{role}: #") == 3  # light, dark, on paper
    drawn = re.findall(r"(?:fill|stroke): var\(--(\w+), #", text)
    assert {"baseline", "best", "other"} <= set(drawn)


def test_it_asks_no_network() -> None:
    read = Read(page_of(tuned))
    assert not {"link", "iframe", "img", "object"} & set(read.tags)
    assert [value for name, value in read.attributes if name == "src"] == []
    assert all(
        (v or "").startswith(("https://", "#", "data:application/json;base64,"))
        for name, v in read.attributes
        if name.endswith("href")
    )
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


def test_of_many_trials_it_says_how_many_it_shows() -> None:
    assert re.search(r"9[67]\d slower ones are not shown", Read(page_of(a_thousand)).words)


def test_of_a_machine_that_was_not_quiet_no_plan_is_called_the_best() -> None:
    text = page(replace(tuned(), **BUSY))
    assert "times" not in text[text.index("<h1>") : text.index("</h1>")]
    assert "perhaps faster" in text
    assert 'class="mark best"' not in text


def test_without_jinja2_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(page_module, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError) as error:
        page(tuned())
    golden(str(error.value))
    assert str(error.value.hint).endswith("pip install 'cputune[report]'")


def test_the_command_writes_one_file_and_replaces_none_but_its_own(
    cputune: Run, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned().save(workdir / "cputune.json")
    first = cputune("report")
    assert (first.code, first.out) == (0, "")
    assert "wrote report.html" in first.err
    drawn = (workdir / "report.html").read_text(encoding="utf-8")
    monkeypatch.setattr(page_module, "page", lambda *_, **__: drawn)  # it is drawn once
    assert cputune("report").code == 0
    (workdir / "report.html").write_text("mine")
    again = cputune("report")
    assert again.code == 2
    assert "hint: --force replaces it" in again.err
    assert (workdir / "report.html").read_text() == "mine"
    assert cputune("report", "--force", "-q").err == ""
    assert (workdir / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(path.name for path in workdir.iterdir()) == ["cputune.json", "report.html"]


def test_the_page_is_opened_by_the_program_of_the_desktop(
    cputune: Run, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned().save(workdir / "cputune.json")
    programs = workdir / "programs"
    programs.mkdir()
    (programs / "xdg-open").write_text(f'#!/bin/sh\nprintf %s "$1" > {workdir}/opened\n')
    (programs / "xdg-open").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    done = ran([sys.executable, "-m", "cputune", "report", "--open"])
    assert done.returncode == 0
    assert "open it in a browser" not in done.stderr
    for _ in range(100):
        if (workdir / "opened").exists():
            break
        time.sleep(0.1)
    assert (workdir / "opened").read_text().endswith("report.html")
    assert cputune("report", "--open", "-o", "-").code == 2


@pytest.mark.parametrize("width", [canvas.NARROW, *like_others([WIDTH])])
@pytest.mark.parametrize("case", CASES)
def test_the_name_of_an_axis_is_not_longer_than_the_axis(case: str, width: float) -> None:
    result = CASES[case]()
    of = result.figures
    drawn = [of.comparison(width=width), of.trials(width=width), of.waterfall(width=width)]
    drawn += [of.step(width=width), of.steps(0, width=width)]
    for figure in filter(None, drawn):
        figure.draw_without_rendering()
        for axes in figure.axes:
            frame = axes.get_window_extent()
            assert axes.yaxis.label.get_window_extent().height <= frame.height
            assert axes.xaxis.label.get_window_extent().width <= frame.width
