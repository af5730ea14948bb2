"""What the hand-written pages say about the project is true: their links, their Python."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest
from rows import every_row

import cputune

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent.parent
PAGES = sorted([*HERE.glob("*.md"), *HERE.glob("docs/*.md"), *HERE.glob("recipes/*.md")])
PROGRAMS = [
    pytest.param(program, id=f"{page.name}-{number}")
    for page in PAGES
    for number, program in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
]


@every_row("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@every_row("program", PROGRAMS)
def test_python_on_a_page_uses_what_is_public(program: str) -> None:
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names)
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "cputune"
        ):
            assert node.attr in cputune.__all__


def test_every_recipe_is_in_their_table() -> None:
    page = (HERE / "recipes" / "README.md").read_text()
    for recipe in HERE.glob("recipes/*.toml"):
        assert f"| `{recipe.stem}` |" in page


def test_a_test_that_a_page_names_is_there() -> None:
    for page in PAGES:
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text()):
            assert f"def {name}(" in (HERE / path).read_text(), f"{page.name}: {name}"


def test_every_promise_has_its_test() -> None:
    page = (HERE / "docs" / "measuring.md").read_text().partition("\n## Reliability")[2]
    rows = re.findall(r"(?m)^\| (?!if )(.+?) \| (.+) \|$", page)
    table = tomllib.loads((HERE / "tests" / "promises.toml").read_text())["promise"]
    assert len(rows) > 30
    assert rows == [(row["if"], row["then"]) for row in table]
    for row in table:
        path, _, name = row["test"].partition("::")
        assert f"def {name}(" in (HERE / path).read_text(), row["test"]
