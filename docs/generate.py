"""Write the pages of this folder that are made from the program's own text: ``make doc``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
from checks_page import checks_page
from drawings import DRAWINGS
from engines_page import clusters_page
from knobs_page import knobs_page
from known_threads import page as threads_page
from manual import man_page
from run import RUN
from terminal import PICTURES

from cputune.cli import cli
from cputune.cli.option_defaults import show_every_option
from cputune.plans.knobs.record import KEPT
from cputune.plans.workload import Recipe
from cputune.records.claims import Outcome
from cputune.records.result import SCHEMA_NAME, SCHEMA_VERSION, Result, TimeToEnd


def cli_page() -> str:
    """Every subcommand's own ``--help``."""
    import click

    lines = ["# The command line", "", "Every command with its options. Made from `--help`.", ""]
    # A program's own settings (-h) count only in a context that is given them.
    wide = {"max_content_width": 88, "terminal_width": 88}
    root = click.Context(cli, info_name="cputune", **{**cli.context_settings, **wide})
    lines += ["```text", cli.get_help(root), "```", ""]
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        assert command is not None
        settings = {**command.context_settings, **wide}
        context = click.Context(command, info_name=name, parent=root, **settings)
        text = command.get_help(show_every_option(context))
        lines += [f"## cputune {name}", "", "```text", text, "```", ""]
    return "\n".join(lines)


def root_help() -> str:
    """What ``cputune --help`` prints in a terminal of 80 columns (click leaves two free)."""
    import click

    settings = {**cli.context_settings, "terminal_width": 78}
    return cli.get_help(click.Context(cli, info_name="cputune", **settings)) + "\n"


ADDRESS = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema() -> dict[str, Any]:
    """The schema of a recipe file, for editors; the recipe's name is the name of the file."""
    _, parts = msgspec.json.schema_components([Recipe], ref_template="#/$defs/{name}")
    for part in parts.values():
        part["additionalProperties"] = False
    recipe = parts.pop("Recipe")
    del recipe["properties"]["name"]
    recipe["required"].remove("name")
    return {"$schema": ADDRESS, **recipe, "title": "cputune recipe", "$defs": parts}


def result_schema() -> dict[str, Any]:
    """The schema of a result file, and of ``--json``: the records, and what is computed of them."""
    _, parts = msgspec.json.schema_components(
        [Result], schema_hook=lambda kind: {}, ref_template="#/$defs/{name}"
    )
    result = parts.pop("Result")
    name = f"{SCHEMA_NAME}/{SCHEMA_VERSION}"
    derived = {
        "outcome": {"enum": list(get_args(Outcome))},
        "keeps": {"type": "object", "additionalProperties": {"enum": list(KEPT)}},
        "time_to_end": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/TimeToEnd"}]},
    }
    _, more = msgspec.json.schema_components([TimeToEnd], ref_template="#/$defs/{name}")
    parts |= more
    result["properties"] = {"schema": {"const": name}, **result["properties"], **derived}
    result["required"] = ["schema", *result["required"], *derived]
    return {"$schema": ADDRESS, **result, "title": name, "$defs": parts}


PAGES: dict[str, Callable[[], str]] = {
    "checks.md": checks_page,
    "clusters.md": clusters_page,
    "cli.md": cli_page,
    "cputune.1": man_page,
    "../cputune/cli/help.txt": root_help,
    "knobs.md": knobs_page,
    "threads.md": threads_page,
    "recipe.schema.json": lambda: json.dumps(recipe_schema(), indent=2) + "\n",
    "result.schema.json": lambda: json.dumps(result_schema(), indent=2) + "\n",
    **DRAWINGS,
    **PICTURES,
    **RUN,
}


def main() -> None:
    """Write each page beside this file."""
    for name, page in PAGES.items():
        place = Path(__file__).parent / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
