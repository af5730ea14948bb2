"""A machine behind a line is seen as it sees itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from nodes.fakes import FakeReach

import cputune
from cputune.errors import Unreachable, UsageError
from cputune.facts import HostFacts
from cputune.nodes.far_host import FarHost
from cputune.nodes.line import Line
from cputune.nodes.named import Node

LASTING = ("cpu", "settings", "python", "packages", "libraries", "launchers")
"""What does not change between two looks."""


@pytest.fixture
def line() -> Iterator[Line]:
    with Line.open(FakeReach(), Node(name="node1")) as opened:
        yield opened


def test_the_probe_sees_the_same_through_a_line(line: Line) -> None:
    far, near = cputune.probe(FarHost(line)), cputune.probe()
    assert {name: getattr(far, name) for name in LASTING} == _of(near)
    assert far.topology.cores == near.topology.cores
    assert far.limits.memory_bytes == near.limits.memory_bytes
    assert far.limits.open_files == near.limits.open_files
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


@pytest.mark.parametrize("minor", [7, 8, 9, 10, 11, 12, 13, 14])
def test_any_python_from_3_7_on_runs_the_agent(minor: int) -> None:
    python = f"python3.{minor}"
    if subprocess.run(["sh", "-c", f"{python} -c ''"], capture_output=True).returncode:
        pytest.skip(f"there is no {python}")
    with Line.open(FakeReach(), Node(name="node1"), pythons=(python,)) as line:
        assert line.hello["version"].startswith(f"3.{minor}.")
        host = FarHost(line, python=sys.executable)
        far, near = cputune.probe(host), cputune.probe()
        assert {name: getattr(far, name) for name in LASTING} == _of(near)
        assert line.spawn(["sh", "-c", "exit 3"]).wait(30) == 3


def test_an_older_python_is_said() -> None:
    for version in ("python3.6", "python2.7"):
        if subprocess.run(["sh", "-c", f"{version} -c ''"], capture_output=True).returncode:
            continue
        with pytest.raises(Unreachable, match=r"cputune needs Python 3\.7 here, and this is"):
            Line.open(FakeReach(), Node(name="node1"), pythons=(version,))
