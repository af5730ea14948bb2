"""What comes from outside reaches a file as a word whose constructor has looked at it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from emit_machines import one_socket

from cputune import emitters
from cputune.emitters import emit, words
from cputune.errors import UsageError

SAID_BY_FORMATS = """
container.files.format container.kustomization.format container.steps.format header.full.format
mpirun.body.hosts mpirun.body.found shell.array.name shell.head.format shell.head.inputs
shell.lines_array.name shell.lines_array.lines shell.rank.launcher shell.rank.binding
shell.rank.more
kubernetes.pod.name container.job_format.kind container.job_format.fits
shell.script.name shell.script.text shell.script.notes shell.start.words
"""
"""Pieces of a file that a format has put together of such words."""

LOOKED_AT_THERE = """
header.full.title header.full.notes shell.head.title shell.head.notes words.comment.lines
words.comment.sign words.document.header kubernetes.escape.word kubernetes.metadata.name
kubernetes.dns_name.given kubernetes.dns_name.what kubernetes.dns_name.example
kubernetes.matching.text kubernetes.matching.what kubernetes.matching.example
kubernetes.pairs.given kubernetes.pairs.what kubernetes.pairs.example
kubernetes.quantity.given kubernetes.quantity.default kubernetes.quantity.option
words.typed.variables command.companions.said
"""
"""They become a comment or a word in that function, or are refused by it."""

IN_NO_FILE = """
command.flag_of.word command.refuse_stack.seen header.host_difference.names header.section.name
job.interface_of.asked job.interface_of.measured job.interface_of.seen job.placed_on.measured
job.promise.variables job.target_facts.versions job.with_versions.versions kubernetes.stays.path
kubernetes.written.path mpirun.host_files.dialects
"""


def texts_taken() -> set[str]:
    """Each parameter of a public function of a format that is a bare text, or holds one."""
    found = set()
    for module in pkgutil.iter_modules(emitters.__path__):
        if module.name.startswith("_") or module.name == "apply":
            continue
        code = importlib.import_module(f"cputune.emitters.{module.name}")
        for name, function in inspect.getmembers(code, inspect.isfunction):
            if name.startswith("_") or function.__module__ != code.__name__:
                continue
            for parameter in inspect.signature(function).parameters.values():
                kind = re.sub(
                    r"Mapping\[str, (?:Any|object)\]|Pattern\[str\]", "", str(parameter.annotation)
                )
                if re.search(r"\bstr\b", kind):
                    found.add(f"{module.name}.{name}.{parameter.name}")
    return found


def test_no_format_takes_a_bare_text_that_nobody_has_looked_at() -> None:
    known = {*SAID_BY_FORMATS.split(), *LOOKED_AT_THERE.split(), *IN_NO_FILE.split()}
    assert texts_taken() == known


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
