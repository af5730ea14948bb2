"""``cputune tune --hosts`` over two hosts with an sshd each: real ranks, and none left."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nodes.cluster import Cluster, two_hosts
from nodes.launches import tiny
from nodes.namespaces import Odd

pytestmark = pytest.mark.nodes

LIGHT = Path(__file__).with_name("answering.py")


def tune(hosts: Cluster, folder: Path, *words: str) -> subprocess.Popen[str]:
    """A tuner beside the hosts, which reaches them by ssh."""
    argv = ["--hosts", "alpha,beta", "--ssh", shlex.join(hosts.ssh), "--share-machine", *words]
    return subprocess.Popen(
        [sys.executable, "-m", "cputune", "tune", *argv],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result_of(tuner: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """What was found, or not compared (4): on shared CPUs one host delays the other."""
    out, err = tuner.communicate(timeout=800)
    assert tuner.returncode in (0, 4), f"{out[-3000:]}\n{err[-3000:]}"
    return json.loads((folder / "cputune.json").read_text())


def until(is_so: Callable[[], object], seconds: float = 400.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.05)


def ranks(hosts: Cluster, host: str) -> list[str]:
    return [command for command in hosts.left(host) if str(LIGHT) in command]


@pytest.fixture(scope="module")
def tuned(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of a recipe that was tuned over both hosts, with two ranks on each."""
    folder = tmp_path_factory.mktemp("tuned")
    tiny(folder)
    recipe = ("--recipe", str(folder / "tiny.toml"), "--budget", "2", "--max-time", "4m")
    result_of(tune(hosts, folder, *recipe, "--fix", "ranks=2", "--fix", "nodes=2"), folder)
    return folder / "cputune.json"


def world_size(trial: dict[str, Any]) -> int:
    return max((rank["world_size"] for rank in trial["observed"]), default=0)


@pytest.mark.timeout(900)
def test_a_recipe_trains_with_world_size_four(hosts: Cluster, tuned: Path) -> None:
    result = json.loads(tuned.read_text())
    assert result["hosts"] == ["alpha", "beta"]
    assert 4 in map(world_size, result["trials"])
    assert not hosts.left("alpha")
    assert not hosts.left("beta")


@pytest.mark.timeout(900)
def test_a_host_behind_a_firewall_with_a_long_path_for_temporary_files_takes_part(
    tmp_path: Path,
) -> None:
    """Longer than the path of a Unix socket may be (unix(7)); and nothing there reaches us."""
    long = tmp_path / ("x" * 60) / ("y" * 60)
    long.mkdir(parents=True)
    fixed = ("--budget", "2", "--fix", "nodes=2", "--fix", "ranks=1", "--max-time", "3m")
    with two_hosts(beta=Odd(environment={"TMPDIR": str(long)})) as named:
        named.no_way_to_us()
        result = result_of(tune(named, tmp_path, *fixed, "--", str(LIGHT), "0.05"), tmp_path)
    assert 2 in map(world_size, result["trials"]), [t["reason"] for t in result["trials"]]
    assert list(long.iterdir()) == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_nothing_is_left_anywhere_of_a_tuner_that_was_ended(
    number: str, hosts: Cluster, tmp_path: Path
) -> None:
    tuner = tune(hosts, tmp_path, "--budget", "9", "--", str(LIGHT), "0.05")
    until(lambda: ranks(hosts, "alpha") and ranks(hosts, "beta"))
    tuner.send_signal(signal.Signals[number])
    tuner.communicate()
    until(lambda: not hosts.left("alpha") and not hosts.left("beta"))
