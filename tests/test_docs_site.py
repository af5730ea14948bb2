"""The site of docs/: built without a warning, and read without a network."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from in_process import ran

pytestmark = pytest.mark.xdist_group("the site")  # built once

HERE = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet, which takes away the warnings that --strict counts.
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = ran(argv, cwd=HERE, env=env)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_of_the_folder_is_on_it(site: Path) -> None:
    pages = {path.stem for path in HERE.glob("docs/*.md")} | {"index", "contributing", "recipes"}
    assert {path.stem for path in site.glob("*.html")} >= pages


def test_it_asks_the_network_for_nothing(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:[^\s\">]+)")
    styled = re.compile(
        r"<link[^>]*rel=\"?(?:stylesheet|preload|preconnect)[^>]*href=\"?(https?:[^\s\">]+)"
    )
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert loaded.findall(text) + styled.findall(text) == [], page.name


def test_every_drawing_says_in_words_what_it_shows() -> None:
    pages = [*HERE.glob("*.md"), *HERE.glob("docs/*.md")]
    shown = [
        (p.name, *found)
        for p in pages
        for found in re.findall(r"!\[(.*?)\]\((.*?)\)", p.read_text())
    ]
    assert [name for name, words, _ in shown if len(words.split()) < 4] == []
    drawn = {path.name for path in HERE.glob("docs/drawings/*.svg")}
    assert drawn == {Path(place).name for _, _, place in shown if "drawings/" in place}
