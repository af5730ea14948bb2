"""Another host that is this one: the agent runs as a plain child, without ssh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cputune.nodes.named import Node
from cputune.nodes.reach import Explained


@dataclass(frozen=True, kw_only=True)
class FakeReach:
    """Starts the program here; ``instead`` maps names of hosts to other commands."""

    name: str = "a fake"
    variables: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def argv(self, node: Node, program: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.instead.get(node.name, program))

    def explain(self, node: Node, code: int | None, said: str) -> Explained:
        return f"it ended with {code}: {said.strip()[-200:]}", None
