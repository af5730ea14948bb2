"""What comes from outside reaches a file as a word whose constructor has looked at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from emit_machines import one_socket
from golden_texts import Golden
from rows import every_row

from cputune import UsageError, Workload, emit
from cputune.emitters import checked_words


def test_a_bare_text_gets_into_no_document(golden: Golden) -> None:
    with golden.raises(UsageError):
        checked_words.dump({"a": "b: {c: d}"})
    with golden.raises(UsageError):
        checked_words.dump({"a\nb": 1})


def test_a_package_of_a_result_is_no_option_of_pip() -> None:
    """Before, a name of a version with a line break became a line of constraints.txt."""
    result = one_socket().result
    hostile = {**result.versions, "x\n--index-url http://example.com\ny": "1.0"}
    files = emit(replace(result, versions=hostile), "pytorchjob")
    (constraints,) = (file.text for file in files if file.name == "constraints.txt")
    assert "index-url" not in constraints


def test_a_folder_of_the_script_is_no_instruction_of_docker() -> None:
    job = Workload.script(["./a\nRUN b/x.py"])
    files = emit(one_socket().result, "pytorchjob", workload=job)
    (text,) = (file.text for file in files if file.name == "Dockerfile")
    assert text.count("requirements.txt ]") == 1


LOOKED_AT: tuple[tuple[Callable[[str], str], tuple[str, ...]], ...] = (
    (checked_words.VariableName, ("", "A B", "A\nB", "A=1", "1A", "Ä", "A[0]", "A-B")),
    (checked_words.HostName, ("", "a b", "a\nb", "-a", "a;b", "a,b")),
    (checked_words.Argument, ("a\0b", "\ud800")),
    (checked_words.ShellWord, ("a\0b", "\ud800")),
    (checked_words.YamlScalar, ("a\0b", "\ud800")),
)


@every_row(("kind", "text"), [(kind, text) for kind, texts in LOOKED_AT for text in texts])
def test_a_word_refuses_what_it_cannot_carry(kind: Callable[[str], str], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        kind(text)
    assert caught.value.hint
