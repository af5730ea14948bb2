"""Words of launch files. Each kind has a constructor that refuses what it cannot represent.

Text from outside (a result file, an option, a path) reaches a file only as one of these.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import yaml

from cputune.errors import UsageError
from cputune.launch.write import exact

# The width of a comment in an emitted file: with indentation and mark it has below 100 columns.
WIDTH = 92

# A YAML document, or a part of one, as plain data.
Manifest: TypeAlias = dict[str, Any]


def comment(lines: Iterable[str]) -> str:
    """Lines as a comment block. Nothing in them can end the comment.

    Characters that are not printable become question marks.
    """
    out = []
    for line in lines:
        plain = "".join(c if c.isprintable() else "?" for c in line)
        wrapped = textwrap.wrap(plain, WIDTH, break_long_words=False, break_on_hyphens=False)
        out += [f"# {part}" for part in wrapped] or ["#"]
    return "\n".join(out) + "\n"


def _refused(text: str, what: str, hint: str) -> UsageError:
    return UsageError(f"{text!r} is not a {what}", hint=hint)


class Argument(str):
    """A word as a process gets it: each format quotes it in its own way."""

    __slots__ = ()

    def __new__(cls, text: str) -> Argument:
        """Raises UsageError for what no argument and no variable of a process can hold."""
        try:
            if "\0" not in text:
                text.encode()
                return super().__new__(cls, text)
        except UnicodeEncodeError:
            pass
        raise UsageError(
            f"the argument {text!r} is not UTF-8 text",
            hint="rename the file, or change the argument",
        )


class VariableName(str):
    """A name that bash, the kubelet and every launcher accept for a variable."""

    __slots__ = ()

    def __new__(cls, text: str) -> VariableName:
        """Raises UsageError for another text: no quotes could carry it."""
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
            raise _refused(text, "name of a variable", "use letters, digits and _")
        return super().__new__(cls, text)


Variables: TypeAlias = Mapping[VariableName, Argument]


def typed(variables: Mapping[str, str]) -> Variables:
    """Variables of a process. Raises UsageError for a name or a value that cannot be one."""
    return {VariableName(name): Argument(value) for name, value in variables.items()}


class HostName(str):
    """A name or an address of a host in a host file."""

    __slots__ = ()

    def __new__(cls, text: str) -> HostName:
        """Raises UsageError for another text."""
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]{0,252}|::[A-Fa-f0-9:.]{0,43}", text):
            raise _refused(text, "name of a host", "name the hosts: --hosts a,b")
        return super().__new__(cls, text)


class ShellWord(str):
    """A word of a bash script: exactly itself."""

    __slots__ = ()

    def __new__(cls, text: str) -> ShellWord:
        """Raises UsageError for what no argument of a process can be."""
        return super().__new__(cls, exact(Argument(text)))


class YamlScalar(str):
    """A string of a YAML document, always between quotes.

    Readers differ in the meaning of plain words (``y``, ``on``, ``0o17``, ``1e3``, ``22:22``): YAML
    1.1 in PyYAML, a mixture in Kubernetes' go-yaml.
    """

    __slots__ = ()

    def __new__(cls, value: str | int) -> YamlScalar:
        """Raises UsageError for what no reader of YAML takes."""
        return super().__new__(cls, Argument(str(value)))


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _quoted(dumper: yaml.SafeDumper, value: YamlScalar) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(value), style='"')


def _plain(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """A plain word of a format itself; any other is a ``YamlScalar``."""
    if not re.fullmatch(r"[A-Za-z0-9_./-]+", value):
        raise _refused(value, "plain word of YAML", "correct it in the result file")
    return dumper.represent_str(str(value))


_Dumper.add_representer(YamlScalar, _quoted)
_Dumper.add_representer(VariableName, _plain)
_Dumper.add_representer(str, _plain)


def dump(content: Any) -> str:
    """One document, keys in their order, without aliases and folded lines."""
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31 - 1)
    assert isinstance(text, str)
    return text


def document(content: Any, header: Iterable[str]) -> str:
    """A document with its header comment."""
    return comment(header) + dump(content)
