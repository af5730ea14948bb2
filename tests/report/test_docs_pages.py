"""The pages of docs/ that are made from the program's own text are up to date."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from report.result_cases import CASES, tuned
from rows import every_row

from cputune import Result
from cputune.doctor.registry import all_checks
from cputune.plans.workload import load_recipe

DOCS = Path(__file__).parents[2] / "docs"
PAGES = runpy.run_path(str(DOCS / "generate.py"))["PAGES"]


@every_row("name", sorted(PAGES))
def test_the_page_is_what_make_doc_writes(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name]()


def test_every_code_of_a_check_is_used_once() -> None:
    codes = [check.code for check in all_checks()]
    assert sorted(codes) == sorted(set(codes))


def test_the_schema_has_every_key_of_a_recipe() -> None:
    schema = json.loads((DOCS / "recipe.schema.json").read_text())
    assert set(schema["properties"]) == set(load_recipe("bert-mini").to_json()) - {"name"}
    assert "name" not in schema["required"]


SCHEMA = json.loads((DOCS / "result.schema.json").read_text())
RESULTS = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_of_results_is_a_schema() -> None:
    RESULTS.check_schema(SCHEMA)


@every_row("case", CASES.values(), ids=CASES.keys())
def test_every_result_is_as_its_schema_says(case: Callable[[], Result]) -> None:
    document = json.loads(json.dumps(case().to_json()))
    RESULTS.validate(document)
    assert set(document) <= set(SCHEMA["properties"])


@every_row(
    ("key", "value"),
    [("schema", "cputune.result/0"), ("trials", None), ("best", {}), ("outcome", "surely")],
)
def test_what_is_no_result_is_refused_by_the_schema(key: str, value: object) -> None:
    document = json.loads(json.dumps(tuned().to_json())) | {key: value}
    with pytest.raises(jsonschema.ValidationError):
        RESULTS.validate(document)


@pytest.mark.parametrize("name", ["run/cputune.json", "terminal/result.json"])
def test_a_published_result_is_as_its_schema_says(name: str) -> None:
    RESULTS.validate(json.loads((DOCS / name).read_text()))
