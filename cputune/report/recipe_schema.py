"""The JSON schema of a recipe file, made of the record: for editors that complete and check."""

from __future__ import annotations

from typing import Any

import msgspec

from cputune.workload import Recipe

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
    "lora": "Train low-rank matrices beside frozen weights (peft).",
    "source": "Where the numbers are from.",
}


def recipe_schema() -> dict[str, Any]:
    """The schema of what stands in the file: the name is the file's own."""
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
