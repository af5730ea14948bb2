"""Hosts that are this very machine: their agents are children of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from nodes.fakes import FakeReach

from cputune.facts import HostFacts
from cputune.nodes.line import Line
from cputune.nodes.named import Node
from cputune.ranks.hosts import RankHost, RankHosts, Way
from cputune.ranks.there import send_modules


@contextmanager
def fake_hosts(facts: HostFacts, *names: str) -> Iterator[RankHosts]:
    """Hosts of these names, all of them this machine, joined by loopback."""
    with ExitStack() as held:
        lines = {
            name: held.enter_context(Line.open(FakeReach(), Node(name=name))) for name in names
        }
        yield RankHosts(
            [
                RankHost(
                    name=name,
                    facts=facts,
                    line=line,
                    root=send_modules(line),
                    own={"HOSTNAME": name},
                )
                for name, line in lines.items()
            ],
            (Way(interface="lo", addresses=dict.fromkeys(names, "127.0.0.1")),),
        )
