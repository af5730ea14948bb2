"""A machine behind a line is seen as it sees itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from nodes.fakes import FakeReach

import cputune
from cputune.errors import UsageError
from cputune.facts import HostFacts
from cputune.nodes.far_host import FarHost
from cputune.nodes.line import Line
from cputune.nodes.named import Node

LASTING = ("cpu", "limits", "settings", "python", "packages", "libraries", "launchers", "network")
"""What does not change between two looks."""


@pytest.fixture
def line() -> Iterator[Line]:
    with Line.open(FakeReach(), Node(name="node1")) as opened:
        yield opened


def test_the_probe_sees_the_same_through_a_line(line: Line) -> None:
    far, near = cputune.probe(FarHost(line)), cputune.probe()
    assert {name: getattr(far, name) for name in LASTING} == _of(near)
    assert far.topology.cores == near.topology.cores
    assert [unknown.fact for unknown in far.unknown] == [unknown.fact for unknown in near.unknown]


def test_most_is_fetched_in_one_answer(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = line.ask

    def ask(do: str, **arguments: Any) -> Any:
        asked.append(f"{do} {arguments.get('path')}")
        return real(do, **arguments)

    monkeypatch.setattr(line, "ask", ask)
    cputune.probe(FarHost(line))
    assert not [words for words in asked if "/sys/devices" in words]
    assert len(asked) < 100


def test_another_python_is_asked_for_its_packages(line: Line) -> None:
    host = FarHost(line, python=sys.executable)
    assert host.executable == sys.executable
    assert host.distributions() == FarHost(line).distributions()
    with pytest.raises(UsageError, match=r"/no/python is no Python .* on node1"):
        FarHost(line, python="/no/python")


def _of(facts: HostFacts) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in LASTING}
