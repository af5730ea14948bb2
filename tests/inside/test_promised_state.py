"""What a rank shows of its command line, its interpreter and the variables that are asked for."""

import hashlib
import sys

from cputune.inside import SHOW_VARIABLE, state
from cputune.inside.meter import length_in


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def test_words_are_shown_as_digests_with_the_content_of_small_files(tmp_path, monkeypatch):
    recipe, large = tmp_path / "recipe.json", tmp_path / "large"
    recipe.write_text("{}")
    large.write_bytes(b"0" * (state.LARGEST_FILE_BYTES + 1))
    monkeypatch.setattr(sys, "argv", ["train.py", str(recipe), str(large), "hf_secret\udcff"])
    shown = state.read()
    assert shown["executable"] == sys.executable
    assert shown["words"] == [
        (digest(b"train.py"), None),
        (digest(str(recipe).encode()), digest(b"{}")),
        (digest(str(large).encode()), None),
        (digest(b"hf_secret?"), None),
    ]


def test_variables_that_are_asked_for_are_shown_and_no_others(monkeypatch):
    monkeypatch.setenv(SHOW_VARIABLE, "ACCELERATE_MIXED_PRECISION,NOT_SET")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("A_PASSWORD", "x")
    shown = state.read()["environment"]
    assert shown["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert not {"A_PASSWORD", "NOT_SET"} & set(shown)


class Tokens:
    shape = (4, 32)


def test_the_length_of_a_sample_is_that_of_its_tokens():
    assert length_in({"labels": (), "input_ids": Tokens()}) == 32
    assert length_in({"pixel_values": Tokens()}) is None
    assert length_in([1, 2]) is None
