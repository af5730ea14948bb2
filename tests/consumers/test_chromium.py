"""The page of `cputune report` in a real browser: what it draws, and what it looks like to whom."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from in_process import ran
from report.result_cases import CASES, hostile, profiled, tuned

from cputune import Result
from cputune.report.page import page

pytestmark = [pytest.mark.consumer, pytest.mark.slow]
pytest.importorskip("jinja2", reason="the extra `report` is not installed")

DESKTOP, PHONE = 1280, 390

MOST_APART = ("only_failures", "profiled", "a_thousand")
"""Of the studies, those whose pages have the least in common."""

LOOK = (Path(__file__).parent / "look_at_page.js").read_text(encoding="utf-8")
"""Runs in the page, and tells the frame around it what it sees."""

AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core")) / "axe.min.js"
"""What `npm install axe-core` lays down, or the directory that AXE_CORE names."""

AROUND = """<!doctype html><title>around</title><body style="margin:0">
<iframe src="page.html" style="width:{width}px;height:4000px;border:0"></iframe>
<pre id="told"></pre>
<script>
onmessage = (told) => {{ document.getElementById("told").textContent = told.data; }};
</script>
"""
"""A window has a least width that a phone is narrower than; a frame has none."""


@pytest.fixture(scope="module")
def chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no chromium on PATH (Debian: apt-get install chromium)")
    return found


def seen(
    chromium: str,
    folder: Path,
    text: str,
    *,
    width: int = DESKTOP,
    dark: bool = False,
    axe: bool = False,
) -> dict[str, Any]:
    """What a browser of this width makes of the page; nothing may be said on its console."""
    scripts = [AXE.read_text(encoding="utf-8")] if axe else []
    put_in = "".join(f"<script>{one}</script>" for one in (*scripts, LOOK))
    looked_at = text.replace("</body>", f"{put_in}</body>")
    (folder / "page.html").write_text(looked_at, encoding="utf-8")
    (folder / "around.html").write_text(AROUND.format(width=width), encoding="utf-8")
    argv = [chromium, "--headless=new", "--disable-gpu", "--enable-logging=stderr"]
    argv += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=30000"]
    argv += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    argv += ["--window-size=1400,4000", "--dump-dom"]
    argv += ["--no-sandbox"] if os.geteuid() == 0 else []
    done = ran([*argv, f"file://{folder / 'around.html'}"])
    assert [line for line in done.stderr.splitlines() if ":CONSOLE" in line] == []
    told = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.S)
    assert told, done.stderr[-2000:]
    assert told[1], "the page never said that it was drawn"
    document: dict[str, Any] = json.loads(unescape(told[1]))
    return document


def is_well(told: dict[str, Any]) -> None:
    """What holds of every page at every width."""
    assert told["too_wide_by"] <= 0
    assert told["asked_for"] == []
    assert told["nameless"] == []
    assert told["pale"] == []
    assert told["small"] == []


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (DESKTOP, True),
        (PHONE, False),
        pytest.param(DESKTOP, False, marks=pytest.mark.matrix),
        pytest.param(PHONE, True, marks=pytest.mark.matrix),
    ],
)
def test_it_is_drawn_and_can_be_read(
    chromium: str, tmp_path: Path, width: int, *, dark: bool
) -> None:
    told = seen(chromium, tmp_path, page(tuned()), width=width, dark=dark)
    is_well(told)
    assert told["bars"] > 4
    assert told["ground"] == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=() if name in MOST_APART else pytest.mark.matrix)
        for name, case in CASES.items()
    ],
)
def test_every_study_is_drawn_on_a_phone(
    chromium: str, tmp_path: Path, case: Callable[[], Result]
) -> None:
    is_well(seen(chromium, tmp_path, page(case()), width=PHONE))


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core (npm install axe-core, or AXE_CORE)")
@pytest.mark.parametrize(("width", "dark"), [(DESKTOP, False), (DESKTOP, True), (PHONE, False)])
def test_axe_finds_no_barrier(chromium: str, tmp_path: Path, width: int, *, dark: bool) -> None:
    told = seen(chromium, tmp_path, page(profiled()), width=width, dark=dark, axe=True)
    assert told["barriers"] == []


def test_hostile_words_run_nothing(chromium: str, tmp_path: Path) -> None:
    told = seen(chromium, tmp_path, page(hostile()), width=PHONE)
    is_well(told)
    assert told["alerts"] == 0
    assert escape("<img") in escape(told["words"])  # it is there to be read


def test_the_browser_lets_nothing_out(chromium: str, tmp_path: Path) -> None:
    sneaky = page(tuned()).replace("</main>", '<img src="http://127.0.0.1:9/x.png"></main>')
    with pytest.raises(AssertionError, match="Loading the image"):
        seen(chromium, tmp_path, sneaky)


def test_it_goes_on_paper(chromium: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(tuned()), encoding="utf-8")
    paper = tmp_path / "page.pdf"
    argv = [chromium, "--headless=new", "--disable-gpu", "--virtual-time-budget=30000"]
    argv += [f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={paper}"]
    argv += ["--no-sandbox"] if os.geteuid() == 0 else []
    subprocess.run([*argv, f"file://{tmp_path / 'page.html'}"], capture_output=True, timeout=120)
    assert paper.read_bytes().startswith(b"%PDF")
