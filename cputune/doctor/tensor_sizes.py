"""What two sizes that do not fit each other mean, by their numbers.

"The size of tensor a (716) must match the size of tensor b (512) at non-singleton dimension 1"
means a text of 716 tokens for a model with 512 positions. Pure.
"""

from __future__ import annotations

import re

from cputune.doctor.release_answers import Answer

_SIZES = re.compile(
    r"(?:size of tensor a|expanded size of the tensor) \((?P<a>\d+)\) must match the "
    r"(?:size of tensor b|existing size) \((?P<b>\d+)\) at non-singleton dimension (?P<at>\d+)"
)
# Numbers of positions of common encoders, with two more for those that count from 2.
_POSITIONS = frozenset({77, 128, 130, 256, 384, 448, 512, 514, 1024, 1026, 2048, 4096, 4098, 8192})
_SMALLEST_VOCABULARY = 5000
# Tokens that are added to a vocabulary are a small part of it. Assumed.
_ADDED_SHARE = 0.1


def answer_of_sizes(message: str) -> Answer | None:
    """The answer to a message about sizes; None if the numbers do not show it."""
    match = _SIZES.search(message)
    if match is None:
        return None
    a, b, at = int(match["a"]), int(match["b"]), int(match["at"])
    if at == 1 and a > b and b in _POSITIONS:
        return Answer(
            title=f"A text of {a} tokens is longer than the {b} positions of the model",
            cause="the tokenizer did not cut it: truncation is off, or model_max_length of the "
            "tokenizer is larger than max_position_embeddings of the model.",
            fix=f"tokenize with truncation=True, max_length={b} (--max_seq_length {b} in scripts "
            "of transformers), or split the text",
            source="huggingface/transformers#11915",
        )
    larger, smaller = max(a, b), min(a, b)
    alike = larger - smaller <= _ADDED_SHARE * larger
    if smaller > _SMALLEST_VOCABULARY and alike:
        return Answer(
            title=f"Two vocabularies: {a} and {b} tokens",
            cause="tokens were added to the tokenizer, or it belongs to another checkpoint, and a "
            "part of the model still has the old size.",
            fix="call model.resize_token_embeddings(len(tokenizer)) before training; load "
            "tokenizer and model of one checkpoint",
            source="huggingface/transformers#2373",
        )
    return None
