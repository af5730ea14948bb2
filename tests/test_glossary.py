"""`make lint` keeps the words of tools/glossary.toml out of new text."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE / "tools"))

import glossary  # noqa: E402


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An empty package with the table, without limits."""
    (tmp_path / "cputune" / "doctor").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    head = glossary.TABLE.read_text(encoding="utf-8").partition("[limits]")[0]
    (tmp_path / "glossary.toml").write_text(f"{head}[limits]\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        '"""Whoever reads this."""\n',
        "# It hangs on the kernel.\n",
        'x = "the cure is here"\n',
        'x = f"{1} of today\'s launch is here"\n',
        '"""None where it is not known."""\n',
    ],
)
def test_a_docstring_a_comment_and_a_message_are_checked(tree: Path, text: str) -> None:
    (tree / "cputune" / "doctor" / "new.py").write_text(text, encoding="utf-8")
    report = "\n".join(glossary.check(tree, tree / "glossary.toml"))
    assert "cputune/doctor/new.py:1" in report


def test_code_names_and_queries_are_not_text(tree: Path) -> None:
    text = 'cure = None\nif cure is None:\n    x = "select name from studies where name = ?"\n'
    (tree / "cputune" / "doctor" / "new.py").write_text(text, encoding="utf-8")
    assert glossary.check(tree, tree / "glossary.toml") == []


def test_a_page_is_checked_and_the_changelog_is_not(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text("Whoever.\n", encoding="utf-8")
    assert glossary.check(tree, tree / "glossary.toml") == []
    shutil.copy(tree / "CHANGELOG.md", tree / "docs" / "page.md")
    assert "docs/page.md:1" in glossary.check(tree, tree / "glossary.toml")[0]


def test_the_name_of_a_test_is_checked(tree: Path) -> None:
    (tree / "tests").mkdir()
    text = "def test_{}_is_asked():\n    pass\n".format("nobody")
    (tree / "tests" / "test_new.py").write_text(text)
    assert "tests/test_new.py:1" in glossary.check(tree, tree / "glossary.toml")[0]


def test_a_limit_only_falls(tree: Path) -> None:
    table = tree / "glossary.toml"
    with table.open("a", encoding="utf-8") as file:
        file.write('"cputune/doctor" = [3, 0]\n')
    module = tree / "cputune" / "doctor" / "new.py"
    module.write_text("# a cure\n# where it fails\n", encoding="utf-8")
    assert "1 of these; 0 are allowed" in glossary.check(tree, table, lower=True)[-1]
    assert glossary.table(table)[1] == {"cputune/doctor": [1, 0]}
