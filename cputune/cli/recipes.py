"""``cputune recipes``: the workloads that come with cputune, and the beginning of your own."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cputune.cli._output import console, json_text, tell
from cputune.cli._tuned import WithScript, script_of
from cputune.errors import UsageError
from cputune.workload import DEFAULT_RECIPE, Workload, load_recipe, recipe_names, recipes_dir

_ACTIONS = ("list", "show", "new", "schema")


@click.command(name="recipes", cls=WithScript)
@click.argument("action", required=False, metavar="[" + "|".join(_ACTIONS) + "]")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One document on stdout, nothing else.")
@click.option("-o", "--output", metavar="FILE", default="-", help="Write there; - is stdout.")
@click.option("--force", is_flag=True, help="Replace FILE where it exists.")
@click.pass_context
def command(
    ctx: click.Context,
    action: str | None,
    name: str | None,
    as_json: bool,
    output: str,
    force: bool,
) -> None:
    """List the workloads that can be tuned on, show one, begin one of your own.

    `new` runs a script for its first step and writes the recipe of what it trains; `schema` is
    the JSON schema of recipes, for editors.

    \b
    cputune recipes
    cputune recipes show gpt2-clm
    cputune recipes new -o mine.toml -- train.py --model_name_or_path gpt2
    """
    if action not in (None, *_ACTIONS):
        raise UsageError(f"recipes cannot {action}", hint=f"one of {', '.join(_ACTIONS)}")
    script = script_of(ctx)
    if (script is not None) != (action == "new"):
        raise UsageError(
            "a script goes with new, and new with a script",
            hint="cputune recipes new -o mine.toml -- train.py",
        )
    if (name is not None) != (action == "show"):
        raise UsageError("show takes the name of a recipe", hint="cputune recipes show gpt2-clm")
    if action in (None, "list"):
        _print_list(as_json)
        return
    if action == "show":
        assert name is not None
        text = _shown(name, as_json)
    elif action == "new":
        text = _begun(script or ())
    else:
        from cputune.report.recipe_schema import recipe_schema

        text = json_text(recipe_schema())
    _put(text, output, force)


def _print_list(as_json: bool) -> None:
    from rich.table import Table

    recipes = [load_recipe(name) for name in recipe_names()]
    if as_json:
        listed = [recipe.to_json() for recipe in recipes]
        sys.stdout.write(json_text({"schema": "cputune.recipes/1", "recipes": listed}))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("recipe", "task", "batch", "sequence", ""):
        table.add_column(heading, justify="right" if heading in ("batch", "sequence") else "left")
    for recipe in recipes:
        default = " (default)" if recipe.name == DEFAULT_RECIPE else ""
        table.add_row(
            recipe.name,
            recipe.task,
            str(recipe.global_batch_size),
            str(recipe.sequence_length),
            recipe.description + default,
        )
    console().print(table)


def _shown(name: str, as_json: bool) -> str:
    """The recipe's file as it stands, with its size as comments; or its values as JSON."""
    from cputune.facts import Unknown
    from cputune.host import read_document
    from cputune.memory import needed_bytes, parameters
    from cputune.report.machine import gib

    recipe = load_recipe(name)
    if as_json:
        return json_text(recipe.to_json())
    weights, need = parameters(recipe.model), needed_bytes(Workload.from_recipe(name))
    counted = "not counted" if weights is None else f"{weights / 1e6:.0f} million"
    memory = need.reason if isinstance(need, Unknown) else f"{gib(need)} at least, one rank"
    shipped = recipes_dir() / f"{name}.toml"
    text = read_document(shipped if shipped.is_file() else Path(name))
    return f"# {recipe.name}: parameters: {counted}; memory: {memory}\n{text}"


def _begun(script: tuple[str, ...]) -> str:
    from cputune.cli._begun import recipe_of_script

    return recipe_of_script(script)


def _put(text: str, output: str, force: bool) -> None:
    if output == "-":
        sys.stdout.write(text)
        return
    from cputune.host import write_atomically

    write_atomically(Path(output), text, force=force)
    tell(f"wrote {output}")
