"""CONTRIBUTING is true: every place that it names is there, and every place has its line."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
TEXT = (HERE / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAP = TEXT.partition("## The map")[2].partition("## Where")[0]
MAKEFILE = (HERE / "Makefile").read_text(encoding="utf-8")

PATHS = sorted(set(re.findall(r"`((?:cputune|tests|docs|recipes|benchmarks)/[^`\s]*)", TEXT)))
PROSE = sorted([*HERE.glob("*.md"), *HERE.glob("docs/*.md")])


def test_every_path_that_it_names_is_there() -> None:
    assert [path for path in PATHS if not (HERE / path).exists()] == []
    assert [path for path in PATHS if path.endswith("/") != (HERE / path).is_dir()] == []


def test_every_room_and_every_record_stands_on_the_map() -> None:
    rooms = {f"cputune/{p.name}/" for p in (HERE / "cputune").iterdir() if any(p.glob("*.py"))}
    modules = {f"cputune/{p.name}" for p in (HERE / "cputune").glob("[a-z]*.py")}
    unnamed = {place for place in rooms | modules if f"`{place}`" not in MAP}
    assert unnamed == set()


def test_a_name_in_the_code_that_it_gives_is_defined_there() -> None:
    places = ("cputune/**/*.py", "docs/*.py", "tests/**/*.py")
    files = [path for place in places for path in HERE.glob(place)]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for words in re.findall(r"`([A-Z]\w+(?:\.(?!md)\w+)?)`", TEXT):
        for name in words.split("."):
            assert re.search(rf"^\s*(class|def) {name}\b|^{name}\b.* = ", code, re.M), words


def test_every_make_target_that_a_page_names_is_one() -> None:
    named = {
        (page.name, word)
        for page in PROSE
        for words in re.findall(
            r"(?:`|^)make ([a-z-]+(?: [a-z-]+)*)(?=`|\s*#|$)",
            page.read_text(encoding="utf-8"),
            re.M,
        )
        for word in words.split()
    }
    assert {pair for pair in named if not re.search(rf"^{pair[1]}:", MAKEFILE, re.M)} == set()


def test_every_target_is_phony_and_explained() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.M))
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.M)
    assert set(phony[1].split()) == targets
    assert targets == set(re.findall(r"^([a-z][a-z-]*):.*## \w", MAKEFILE, re.M))
