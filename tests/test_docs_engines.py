"""The table of engines is made of tests: each is there, and it is said how it ended."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import engines_page
from rows import every_row

HERE = Path(__file__).resolve().parent.parent


@every_row("test", sorted(engines_page.tests()))
def test_a_test_of_the_table_is_there_and_passed_if_it_was_run(test: str) -> None:
    file, _, name = test.partition("::")
    name, _, values = name.partition("[")
    text = (HERE / file).read_text()
    functions = [
        node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)
    ]
    assert name in functions
    for value in values.removesuffix("]").split("-") if values else ():
        assert f'"{value}"' in text
    assert json.loads(engines_page.RECORD.read_text()).get(test, ["passed"])[0] == "passed"


def test_nothing_is_kept_that_the_table_does_not_show_and_reasons_are_given() -> None:
    assert set(json.loads(engines_page.RECORD.read_text())) <= engines_page.tests()
    cells = [cell for row in engines_page.ROWS.values() for cell in row]
    assert all(len(row) == len(engines_page.COLUMNS) for row in engines_page.ROWS.values())
    assert all(cell for cell in cells)


def test_how_a_test_ended_is_read_from_its_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.a.test_b" name="c[d]"/>'
        '<testcase classname="tests.a.test_b" name="e"><failure/></testcase>'
        '<testcase classname="tests.a.test_b" name="f"><skipped/></testcase>'
        '<testcase classname="tests.a.test_b" name="g"><system-out/><error/></testcase>'
        "</testsuite></testsuites>"
    )
    assert engines_page.results(report) == {
        "tests/a/test_b.py::c[d]": "passed",
        "tests/a/test_b.py::e": "failed",
        "tests/a/test_b.py::f": "skipped",
        "tests/a/test_b.py::g": "failed",
    }
