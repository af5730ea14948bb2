"""``cputune recipes``: the workloads that come with cputune, and the beginning of your own."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from cputune.cli.given import choose_python, python_option
from cputune.cli.output import console, json_text, put, tell
from cputune.cli.settings import ConfiguredCommand, force_option, json_option, option, script_of
from cputune.errors import CannotError, UsageError
from cputune.script import read_typed, require_trainable
from cputune.workload import (
    DEFAULT_RECIPE,
    Recipe,
    Workload,
    load_recipe,
    recipe_names,
    recipes_dir,
)

_ACTIONS = ("list", "show", "new", "schema")


@click.command(name="recipes", cls=ConfiguredCommand, takes_script=True)
@click.argument("action", required=False, metavar="[" + "|".join(_ACTIONS) + "]")
@click.argument("name", required=False)
@json_option
@option("-o", "--output", metavar="FILE", default="-", help="Write there; - is stdout.")
@force_option
@python_option
@click.pass_context
def command(
    ctx: click.Context,
    action: str | None,
    name: str | None,
    as_json: bool,
    output: str,
    force: bool,
    python: str | None,
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
        choose_python(python, script or ())
        text = recipe_of_script(script or ())
    else:
        text = json_text(recipe_schema())
    put(text, output, force=force)


def _print_list(as_json: bool) -> None:
    from cputune.report.writing import Rows, rich_table

    recipes = [load_recipe(name) for name in recipe_names()]
    if as_json:
        listed = [recipe.to_json() for recipe in recipes]
        sys.stdout.write(json_text({"schema": "cputune.recipes/1", "recipes": listed}))
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


_TASKS = (
    # the end of a model's class, its task
    ("ForQuestionAnswering", "question-answering"),
    ("ForSequenceClassification", "sequence-classification"),
    ("ForTokenClassification", "token-classification"),
    ("ForMaskedLM", "masked-lm"),
    ("ForCausalLM", "causal-lm"),
    ("LMHeadModel", "causal-lm"),
    ("ForConditionalGeneration", "seq2seq-lm"),
    ("ForImageClassification", "image-classification"),
)
_HEAD = """# Begun by what the first step of {script} showed. Numbers that a sequence or a batch had
# then may differ in other steps: look them over. `cputune tune --recipe FILE` trains it.
"""


def recipe_of_script(script: Sequence[str]) -> str:
    """Run a script for one step, as a trial does, and write down what it trains.

    Raises CputuneError where the script cannot be run, or trains what no recipe describes.
    """
    from cputune.layout import baseline_plan
    from cputune.probing import probe
    from cputune.ranks.runner import ProcessRunner
    from cputune.steps import TrialError

    for note in read_typed(script).notes:
        tell(f"note: {note}")
    job = Workload.script(script)
    require_trainable(job.argv)
    facts = probe()
    plan = baseline_plan(facts, ranks=job.launch_ranks)
    with ProcessRunner(job, facts, on_note=tell) as runner:
        try:
            with closing(runner.steps(plan)) as steps:  # type: ignore[type-var]
                step = next(steps)
        except TrialError as error:
            raise CannotError(
                f"the script cannot be run: {error}",
                hint="`cputune tune` tells more",
                details=error.details,
            ) from error
        return begun(job.name, runner.trained, step.samples)


def begun(script: str, state: Mapping[str, Any], samples: int) -> str:
    """The recipe of what a rank told of its first step. Raises CannotError."""
    model = state.get("model") or {}
    name, config = str(model.get("class", "")), model.get("config") or {}
    task = next((task for end, task in _TASKS if name.endswith(end)), None)
    if task is None or not config:
        raise CannotError(
            f"no recipe describes the training of {name or 'a model that shows no class'}",
            hint="tune on the script itself: cputune tune -- " + script,
        )
    length = state.get("sequence_length")
    if length is None and "image_size" in config and "patch_size" in config:
        length = (config["image_size"] // config["patch_size"]) ** 2 + 1
    lines = [
        f"description = {_toml(f'As in {script}')}",
        f"task = {_toml(task)}",
        f"sequence_length = {length or 1}",
        f"global_batch_size = {samples}",
        f"learning_rate = {state.get('learning_rate') or 5e-5}",
        "",
        "[model]",
        *(f"{key} = {_toml(value)}" for key, value in sorted(config.items()) if _told(key)),
    ]
    if name.startswith("Peft"):
        lines += ["", "# The script trains by peft: name its matrices here.", "# [lora]"]
        lines += ["# rank = 8", "# alpha = 16.0", '# target_modules = ["query", "value"]']
    return _HEAD.format(script=json.dumps(script)) + "\n".join(lines) + "\n"


def _told(key: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9_]+", key)) and key != "transformers_version"


def _toml(value: bool | int | float | str) -> str:
    """A value as TOML writes it; its texts are JSON's, but for DEL, which JSON does not escape."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


ADDRESS = "https://json-schema.org/draft/2020-12/schema"

_MEANING = {
    "description": "One line for people.",
    "task": "What the model learns.",
    "model": "A transformers configuration: model_type and its fields.",
    "hub_id": "The same model on the hub, or a local folder that holds it.",
    "sequence_length": "Tokens of one sample (of an image: its patches, and one).",
    "target_length": "Tokens that a seq2seq-lm writes for one sample.",
    "global_batch_size": "Samples of one optimizer step over all ranks; constant while tuning.",
    "learning_rate": "Peak learning rate.",
    "dataset": "On the hub: name, name/configuration or owner/name/configuration.",
    "doc_stride": "Overlap of the windows over a long context, in tokens.",
    "lengths": "How long the samples of the data are; random ones are made as long.",
    "lora": "Train low-rank matrices beside frozen weights (peft).",
    "source": "Where the numbers are from.",
}


def recipe_schema() -> dict[str, Any]:
    """The schema of what stands in the file: the name is the file's own."""
    import msgspec

    (_, *_), parts = msgspec.json.schema_components([Recipe], ref_template="#/$defs/{name}")
    recipe = dict(parts.pop("Recipe"))
    properties = {
        key: {**value, "description": _MEANING[key]}
        for key, value in recipe["properties"].items()
        if key != "name"
    }
    properties["model"] |= {
        "required": ["model_type"],
        "properties": {"model_type": {"type": "string"}},
    }
    return {
        "$schema": ADDRESS,
        "title": "cputune recipe",
        "type": "object",
        "properties": properties,
        "required": [key for key in recipe["required"] if key != "name"],
        "additionalProperties": False,
        "$defs": {
            name: {**part, "additionalProperties": False} for name, part in sorted(parts.items())
        },
    }
