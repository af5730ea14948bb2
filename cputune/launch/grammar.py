"""The grammar of bash, by tree-sitter; loaded when a text is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

from cputune.errors import MissingPackageError
from cputune.launch.located_words import Span


@lru_cache(maxsize=1)
def _parser() -> Parser:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        raise MissingPackageError(
            "a shell script is read with tree-sitter, which is not installed",
            hint="pip install tree-sitter tree-sitter-bash",
        ) from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
# What tree-sitter reads instead: for bash and its grammar a character of a word, and of no name.
#
# tree-sitter-bash asks C's isdigit about any character, and dies of SIGSEGV at some beyond U+FFFF
# (https://github.com/tree-sitter/tree-sitter-bash/issues/337).
_PLAIN = "\x7f"


class Tree:
    """A parsed text. Every character is a byte for tree-sitter, so that its spans are ours."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tree = _parser().parse(_NOT_ASCII.sub(_PLAIN, text).encode())

    @property
    def root(self) -> Node:
        """The whole program."""
        return self._tree.root_node

    def span(self, node: Node) -> Span:
        """The characters of a node."""
        return Span(node.start_byte, node.end_byte)

    def of(self, node: Node) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def nodes(self, kind: str) -> Iterator[Node]:
        """Every node of a kind, in the order of the text."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            if node.type == kind:
                yield node
            waiting += reversed(node.children)


def unclosed_quote(tree: Tree) -> int | None:
    """Where a quote is opened that is never closed, or None."""
    if not tree.root.has_error:
        return None
    for node in tree.nodes("ERROR"):
        start, end = tree.span(node)
        if tree.text[start : start + 1] in ('"', "'") and end >= len(tree.text.rstrip()):
            return start
    return None
