"""``cputune recipes``: the workloads that come with cputune."""

from __future__ import annotations

from pathlib import Path

import click

from cputune.cli import completing
from cputune.cli.option_defaults import ConfiguredCommand
from cputune.cli.output import console
from cputune.host import read_document
from cputune.plans.memory import HALF, SINGLE, needed_bytes
from cputune.plans.workload import DEFAULT_RECIPE, Workload, load_recipe, recipe_names, recipes_dir


@click.command(name="recipes", cls=ConfiguredCommand)
@click.argument("name", required=False, shell_complete=completing.recipes)
def command(name: str | None) -> None:
    """List the workloads that can be tuned, or print the file of one.

    \b
    cputune recipes
    cputune recipes gpt2-clm > mine.toml
    """
    if name is None:
        _print_list()
    else:
        click.echo(_with_its_size(name), nl=False)


def _print_list() -> None:
    from cputune.report.writing import Rows, rich_table

    rows = []
    for recipe in map(load_recipe, recipe_names()):
        description = recipe.description
        if recipe.name == DEFAULT_RECIPE:
            description += " (default)"
        batch, length = str(recipe.global_batch_size), str(recipe.sequence_length)
        rows.append((recipe.name, recipe.task, batch, length, description))
    headings = ("recipe", "task", "batch", "sequence", "")
    right = frozenset(("batch", "sequence"))
    console().print(rich_table(Rows(headings=headings, rows=tuple(rows), right=right)))


def _with_its_size(name: str) -> str:
    """The recipe's file, after a comment with the size of its model."""
    from cputune.report.machine_text import gib

    recipe = load_recipe(name)
    parameters = "not known"
    if recipe.parameters:
        parameters = f"{recipe.parameters / 1e6:.0f} million"
    job = Workload.from_recipe(name)
    bf16, fp32 = (gib(needed_bytes(job, value_bytes=size)) for size in (HALF, SINGLE))
    memory = f"one rank needs at least {bf16} in bf16, {fp32} in fp32"
    path = recipes_dir() / f"{name}.toml"
    if not path.is_file():
        path = Path(name)
    return f"# {recipe.name}: parameters: {parameters}; memory: {memory}\n{read_document(path)}"
