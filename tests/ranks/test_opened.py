"""What would make every trial fail on a host is named before the first, with the cure."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from nodes.fakes import FakeReach

import cputune
from cputune.errors import CannotError, CputuneError, Unreachable, UsageError
from cputune.facts import HostFacts, Link, Network
from cputune.nodes.line import Line
from cputune.nodes.named import Node
from cputune.ranks import opened
from cputune.ranks.hosts import RankHost
from cputune.ranks.opened import open_hosts, ways_between
from cputune.workload import Workload

RECIPE = Workload.from_recipe("bert-mini")


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    return cputune.probe()


def nodes(*names: str) -> list[Node]:
    return [Node(name=name) for name in names]


def refused(reach: FakeReach, *names: str, job: Workload = RECIPE) -> CputuneError:
    with pytest.raises(CputuneError) as caught, open_hosts(nodes(*names), reach, job):
        pass
    assert caught.value.hint
    return caught.value


def test_a_host_twice() -> None:
    error = refused(FakeReach(), "alpha", "alpha")
    assert isinstance(error, UsageError)
    assert "alpha is named twice" in str(error)


def test_a_host_that_is_not_reached() -> None:
    reach = FakeReach(instead={"beta": ("sh", "-c", "echo no such host >&2; exit 255")})
    with (
        pytest.raises(Unreachable, match="no such host"),
        open_hosts(nodes("alpha", "beta"), reach, RECIPE),
    ):
        pass


def test_the_python_that_trains_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/training/bin/python")
    error = refused(FakeReach(), "alpha")
    assert str(error) == "there is no /opt/training/bin/python on alpha"
    assert "same path" in (error.hint or "")


def test_the_script_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    asked = Line.ask

    def ask(self: Line, do: str, **arguments: object) -> object:
        if do == "exists" and arguments["path"] == str(script):
            return False
        return asked(self, do, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Line, "ask", ask)
    error = refused(FakeReach(), "alpha", job=Workload.script([str(script)]))
    assert str(error) == f"there is no {script} on alpha"


def test_another_torch_is_there(facts: HostFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    older = tuple(
        replace(package, version="2.8.0") if package.name == "torch" else package
        for package in facts.packages
    )
    machines = [facts, replace(facts, packages=older)]
    monkeypatch.setattr(opened, "probe", lambda host: machines.pop())
    error = refused(FakeReach(), "alpha", "beta")
    assert isinstance(error, CannotError)
    assert "torch is 2." in str(error)
    assert "pip install torch==" in (error.hint or "")


def test_hosts_without_a_network_between_them(facts: HostFacts) -> None:
    lo = Network(interfaces=("lo",), links=(Link(name="lo", up=True, addresses=("127.0.0.1/8",)),))
    alone = [
        RankHost(name=name, facts=replace(facts, network=lo), line=None, root="", own={})  # type: ignore[arg-type]
        for name in ("alpha", "beta")
    ]
    with pytest.raises(CannotError, match="no network interface leads from host to host"):
        ways_between(alone)
