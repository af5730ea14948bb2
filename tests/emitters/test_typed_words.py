"""What comes from outside reaches a file as a word whose constructor has looked at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from emit_machines import one_socket

from cputune.emitters import emit, words
from cputune.errors import UsageError


def test_a_bare_text_gets_into_no_document() -> None:
    with pytest.raises(UsageError, match="YAML carries without quotes"):
        words.dump({"a": "b: {c: d}"})
    with pytest.raises(UsageError, match="YAML carries without quotes"):
        words.dump({"a\nb": 1})


def test_a_package_of_a_result_is_no_option_of_pip() -> None:
    """Before, a name of a version with a line break became a line of constraints.txt."""
    result = one_socket().result
    hostile = {**result.versions, "x\n--index-url http://example.com\ny": "1.0"}
    with pytest.raises(UsageError, match="no name of a package"):
        emit(replace(result, versions=hostile), "pytorchjob")


def test_cpus_are_numbers() -> None:
    assert words.CpuList((0, 1, 2), (8,)) == "0-2/8"
    with pytest.raises(UsageError):
        words.CpuList((-1,))


LOOKED_AT: tuple[tuple[Callable[[str], str], tuple[str, ...]], ...] = (
    (words.VariableName, ("", "A B", "A\nB", "A=1", "1A", "Ä", "A[0]", "A-B")),
    (words.HostName, ("", "a b", "a\nb", "-a", "a;b", "a,b")),
    (words.PackageName, ("", "-r x", "a\n--index-url x", "a b", "a==1")),
    (words.Argument, ("a\0b", "\ud800")),
    (words.ShellWord, ("a\0b", "\ud800")),
    (words.DockerWord, ("a\nRUN b", "\x1b[2J", "a\0b")),
    (words.YamlScalar, ("a\0b", "\ud800")),
)


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in LOOKED_AT for text in texts]
)
def test_a_word_refuses_what_it_cannot_carry(kind: Callable[[str], str], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        kind(text)
    assert caught.value.hint
