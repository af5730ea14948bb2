"""``cputune recipes``: the workloads that come with cputune."""

from __future__ import annotations

from pathlib import Path

import click

from cputune.cli.output import console, json_text, print_json
from cputune.cli.settings import ConfiguredCommand, json_option
from cputune.errors import UsageError
from cputune.workload import DEFAULT_RECIPE, Workload, load_recipe, recipe_names, recipes_dir

_ACTIONS = ("list", "show")


@click.command(name="recipes", cls=ConfiguredCommand)
@click.argument("action", default="list", metavar="[" + "|".join(_ACTIONS) + "]")
@click.argument("name", required=False)
@json_option
def command(action: str, name: str | None, json: bool) -> None:
    """List the workloads that can be tuned on, or show one.

    \b
    cputune recipes
    cputune recipes show gpt2-clm > mine.toml
    """
    if action not in _ACTIONS:
        raise UsageError(f"recipes cannot {action}", hint=f"one of {', '.join(_ACTIONS)}")
    if (name is not None) != (action == "show"):
        raise UsageError("show takes the name of a recipe", hint="cputune recipes show gpt2-clm")
    if name is None:
        _print_list(json)
    else:
        click.echo(_shown(name, json), nl=False)


def _print_list(as_json: bool) -> None:
    from cputune.report.writing import Rows, rich_table

    recipes = [load_recipe(name) for name in recipe_names()]
    if as_json:
        listed = [recipe.to_json() for recipe in recipes]
        print_json({"schema": "cputune.recipes/1", "recipes": listed})
        return
    rows = tuple(
        (
            recipe.name,
            recipe.task,
            str(recipe.global_batch_size),
            str(recipe.sequence_length),
            recipe.description + " (default)" * (recipe.name == DEFAULT_RECIPE),
        )
        for recipe in recipes
    )
    headings = ("recipe", "task", "batch", "sequence", "")
    right = frozenset(("batch", "sequence"))
    console().print(rich_table(Rows(headings=headings, rows=rows, right=right)))


def _shown(name: str, as_json: bool) -> str:
    """The recipe's file as it is, with its size as comments; or its values as JSON."""
    from cputune.host import read_document
    from cputune.memory import needed_bytes
    from cputune.report.machine import gib

    recipe = load_recipe(name)
    if as_json:
        return json_text(recipe.to_json())
    counted = f"{recipe.parameters / 1e6:.0f} million" if recipe.parameters else "not told"
    memory = f"{gib(needed_bytes(Workload.from_recipe(name)))} at least, one rank"
    shipped = recipes_dir() / f"{name}.toml"
    text = read_document(shipped if shipped.is_file() else Path(name))
    return f"# {recipe.name}: parameters: {counted}; memory: {memory}\n{text}"
