"""The tables of stack.toml: complete, in order, read to the last key."""

import ast
import dataclasses
from datetime import date

from packaging.version import Version
from rows import every_row
from sources import modules, one_worker

from cputune.stack import Versions, load, tables
from cputune.stack.fit import misfits
from cputune.stack.tables import parse, satisfies
from cputune.stack.version_changes import version_change

STACK = load()
LIBRARIES = (STACK.transformers, STACK.accelerate)


def features():
    for library in LIBRARIES:
        for field in dataclasses.fields(library):
            rows = getattr(library, field.name)
            yield from (row for row in rows if isinstance(row, tables.Feature))


def test_the_ipex_of_a_torch_is_of_its_minor_the_newest_first():
    found = [str(row.version) for row in STACK.ipex_for(Version("2.3.1"))]
    assert found == sorted((one for one in found if one.startswith("2.3.")), reverse=True) != []
    assert STACK.ipex_for(None) == STACK.ipex_for(Version("2.13.0")) == ()


def test_what_was_the_newest_when_the_tables_were_checked_stands_next_to_the_day():
    newest = {name: str(rows[-1]) for name, rows in STACK.releases().items() if name != "numpy"}
    day = date.fromisoformat(STACK.checked["day"])
    assert {"day": day.isoformat(), **newest} == dict(STACK.checked)


def test_every_row_has_a_source():
    rows = (*STACK.eras, *STACK.torch_behaviours, *STACK.ipex, *STACK.oneccl, *LIBRARIES)
    assert all(row.source for row in rows)


def test_rows_are_in_the_order_of_their_versions():
    for rows in (
        [row.version for row in STACK.torch],
        [row.version for row in STACK.ipex],
        [row.version for row in STACK.oneccl],
        [row.first for row in STACK.transformers.needs],
        [row.first for row in STACK.accelerate.needs],
        STACK.transformers.read,
        STACK.accelerate.read,
    ):
        assert list(rows) == sorted(rows)


def test_both_eras_fit_and_are_what_they_say():
    for era in STACK.eras:
        stack = Versions(python=Version("3.11"), **era.versions)
        assert misfits(stack) == ()
        way = version_change(era.name, stack)
        assert way is not None
        assert way.changes == ()


def test_a_version_older_than_the_tables_is_not_guessed():
    assert STACK.transformers.needs_of(Version("3.5.0")) is None


def test_local_labels_and_development_versions_are_let_through():
    assert satisfies(Version("2.8.0+cpu"), "==2.8.0")
    assert satisfies(Version("2.9.0.dev20250801"), ">=2.8")
    assert not satisfies(Version("2.1.0"), "<2")


def test_what_is_not_a_version_is_unknown():
    assert (parse("git-main"), parse(None), parse("9" * 5000)) == (None, None, None)


@one_worker
def test_every_field_of_the_tables_is_read_by_somebody():
    nodes = [node for module in modules() for node in module.nodes]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    read |= {node.value for node in nodes if isinstance(node, ast.Constant)}
    kinds = (tables.Release, tables.Needs, tables.Feature, tables.Era)
    for kind in (*kinds, tables.LibraryTable):
        assert {field.name for field in dataclasses.fields(kind)} <= read
    rows = (row for library in LIBRARIES for row in library.behaviours)
    assert {row.name for row in (*rows, *STACK.torch_behaviours)} <= read


@one_worker
def test_no_behaviour_is_asked_for_that_no_table_has():
    asked = {
        node.args[0].value
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith((".does", ".torch_does", "_torch_does_not"))
        and isinstance(node.args[0], ast.Constant)
    }
    rows = (row for library in LIBRARIES for row in library.behaviours)
    assert asked <= {row.name for row in (*rows, *STACK.torch_behaviours)}


@every_row("row", list(features()), ids=lambda row: row.name)
def test_a_row_ends_with_its_last_minor_release(row):
    if row.first is not None:
        major, small = row.first
        assert row.covers(Version(f"{major}.{small}.0"))
        assert row.covers(Version(f"{major}.{small}.0.dev1"))
        before = f"{major}.{small - 1}.99" if small else f"{major - 1}.99"
        assert not row.covers(Version(before))
    if row.last is not None:
        major, small = row.last
        assert row.covers(Version(f"{major}.{small}.99"))
        assert not row.covers(Version(f"{major}.{small + 1}.0"))
    assert row.covers(None) is (row.last is None)
