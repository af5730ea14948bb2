"""YAML that every reader takes the same way: what comes from outside is always quoted.

Readers differ in what a plain word means (``y``, ``on``, ``0o17``, ``1e3``, ``22:22``):
YAML 1.1 in PyYAML, a mixture in Kubernetes' go-yaml.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from cputune.emitters.header import comment


class Quoted(str):
    """A string that is written between quotes, whatever it looks like."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _quoted(dumper: yaml.SafeDumper, value: Quoted) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(value), style='"')


_Dumper.add_representer(Quoted, _quoted)


def dump(content: Any) -> str:
    """One document, keys in their order, no aliases, no folded lines."""
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31 - 1)
    assert isinstance(text, str)
    return text


def document(content: Any, header: Iterable[str]) -> str:
    """A document with its header comment."""
    return comment(header) + dump(content)
