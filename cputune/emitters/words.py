"""Words of launch files. Each kind is built by a constructor that refuses what it cannot carry.

What comes from outside (a result file, an option, a path) reaches a file only as one of these.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

import yaml

from cputune.emitters.header import comment
from cputune.errors import UsageError


def _refused(text: str, what: str, hint: str) -> UsageError:
    return UsageError(f"{text!r} is no {what}", hint=hint)


class VariableName(str):
    """A name that bash, the kubelet and every launcher take as that of a variable."""

    __slots__ = ()

    def __new__(cls, text: str) -> VariableName:
        """Raises UsageError for another text: no quotes could carry it."""
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
            raise _refused(text, "name of a variable", "letters, digits and _; mend the result")
        return super().__new__(cls, text)


class HostName(str):
    """A name or an address of a host, as host files hold it."""

    __slots__ = ()

    def __new__(cls, text: str) -> HostName:
        """Raises UsageError for another text."""
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]{0,252}|::[A-Fa-f0-9:.]{0,43}", text):
            raise _refused(text, "name of a host", "name the hosts: --hosts a,b")
        return super().__new__(cls, text)


class ShellWord(str):
    """A word of a bash script: exactly itself, whatever it holds."""

    __slots__ = ()

    def __new__(cls, text: str) -> ShellWord:
        """Raises UsageError for what no argument of a process can be."""
        refuse_unprintable(text)
        if "," in text and "'" not in text:
            return super().__new__(cls, f"'{text}'")  # readers of arrays ask for it (SC2054)
        return super().__new__(cls, shlex.quote(text))


class DockerWord(str):
    """A word of a RUN line: quoted for sh. A line break would begin another instruction."""

    __slots__ = ()

    def __new__(cls, text: str) -> DockerWord:
        """Raises UsageError for a text with control characters."""
        if not text.isprintable():
            raise _refused(text, "path that a Dockerfile can carry", "rename the folder")
        return super().__new__(cls, shlex.quote(text))


class Quoted(str):
    """A string of a YAML document, written between quotes, whatever it looks like.

    Readers differ in what a plain word means (``y``, ``on``, ``0o17``, ``1e3``, ``22:22``):
    YAML 1.1 in PyYAML, a mixture in Kubernetes' go-yaml.
    """

    __slots__ = ()


class Block(str):
    """Lines of a YAML document, written as they are where YAML can."""

    __slots__ = ()


def refuse_unprintable(word: str) -> None:
    """Raise UsageError for what no argument and no variable can hold."""
    try:
        if "\0" not in word:
            word.encode()
            return
    except UnicodeEncodeError:
        pass
    raise UsageError(
        f"the argument {word!r} is no text", hint="rename the file, or change the argument"
    )


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _quoted(dumper: yaml.SafeDumper, value: Quoted) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(value), style='"')


def _block(dumper: yaml.SafeDumper, value: Block) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(value), style="|")


def _plain(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_str(str(value))


_Dumper.add_representer(Quoted, _quoted)
_Dumper.add_representer(Block, _block)
_Dumper.add_representer(VariableName, _plain)


def dump(content: Any) -> str:
    """One document, keys in their order, no aliases, no folded lines."""
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31 - 1)
    assert isinstance(text, str)
    return text


def document(content: Any, header: Iterable[str]) -> str:
    """A document with its header comment."""
    return comment(header) + dump(content)
