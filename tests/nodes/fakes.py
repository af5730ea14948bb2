"""Another host that is this one: the agent runs as a plain child, without ssh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cputune import Node
from cputune.host.remote.reach import Reach


@dataclass(frozen=True, kw_only=True)
class FakeReach(Reach):
    """Starts the program here; ``instead`` maps names of hosts to other commands.

    ``started`` is put before the program on all hosts.
    """

    name: str = "a fake"
    instead: Mapping[str, Sequence[str]] = field(default_factory=dict)
    started: Sequence[str] = ()

    def argv(self, node: Node, program: Sequence[str]) -> tuple[str, ...]:
        return (*self.started, *self.instead.get(node.name, program))
