"""``cputune recipes``: the workloads that come with cputune."""

from __future__ import annotations

import click

from cputune.cli._output import console
from cputune.workload import DEFAULT_RECIPE, load_recipe, recipe_names


@click.command(name="recipes")
def command() -> None:
    """List the workloads that can be tuned on."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("recipe", "task", "batch", "sequence", ""):
        table.add_column(heading, justify="right" if heading in ("batch", "sequence") else "left")
    for name in recipe_names():
        recipe = load_recipe(name)
        default = " (default)" if name == DEFAULT_RECIPE else ""
        table.add_row(
            name,
            recipe.task,
            str(recipe.global_batch_size),
            str(recipe.sequence_length),
            recipe.description + default,
        )
    console().print(table)
