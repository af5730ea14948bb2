"""The tables of stack.toml: complete, in order, read to the last key."""

import ast
import dataclasses

from sources import modules, one_worker

from cputune.stack import load, tables

STACK = load()
LIBRARIES = (STACK.transformers, STACK.accelerate)


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
