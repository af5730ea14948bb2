"""The beginning of a recipe: what the first step of a script has shown, as a TOML file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from cputune.cli._output import tell
from cputune.errors import CannotError
from cputune.script import read_typed, require_trainable
from cputune.workload import Workload

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
