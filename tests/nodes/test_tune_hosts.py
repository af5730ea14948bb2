"""``cputune tune --hosts`` over two hosts with an sshd each: real ranks, a cut cable, a SIGKILL."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nodes.cluster import Cluster, two_hosts

pytestmark = pytest.mark.nodes

LIGHT = Path(__file__).parent.parent / "faults" / "light.py"


@pytest.fixture
def pair() -> Iterator[Cluster]:
    """Two hosts of one test's own: it cuts them off."""
    with two_hosts() as made:
        yield made


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


def result_of(tuner: subprocess.Popen[str], folder: Path) -> dict[str, object]:
    out, err = tuner.communicate(timeout=500)
    assert tuner.returncode == 0, f"{out[-3000:]}\n{err[-3000:]}"
    return json.loads((folder / "cputune.json").read_text())


def until(is_so: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.05)


def ranks(hosts: Cluster, host: str) -> list[str]:
    return [command for command in hosts.left(host) if str(LIGHT) in command]


@pytest.mark.timeout(600)
def test_a_recipe_trains_with_world_size_four(hosts: Cluster, tmp_path: Path) -> None:
    fixed = ("--fix", "ranks=2", "--max-time", "5m")
    result = result_of(tune(hosts, tmp_path, "--budget", "4", *fixed), tmp_path)
    assert result["hosts"] == ["alpha", "beta"]
    seen = {rank["world_size"] for trial in result["trials"] for rank in trial["observed"]}
    assert 4 in seen
    assert not hosts.left("alpha")
    assert not hosts.left("beta")


@pytest.mark.timeout(300)
def test_a_host_that_is_cut_off_is_named_and_the_study_goes_on(
    pair: Cluster, tmp_path: Path
) -> None:
    words = ("--budget", "4", "--knobs", "nodes,threads", "--", str(LIGHT), "0.05")
    tuner = tune(pair, tmp_path, *words)
    until(lambda: ranks(pair, "beta"))
    pair.cut("beta")
    result = result_of(tuner, tmp_path)
    lost = [trial for trial in result["trials"] if trial["kind"] == "host lost"]
    assert len(lost) == 1
    assert lost[0]["reason"].startswith("beta was lost: ")
    later = result["trials"][lost[0]["number"] + 1 :]
    assert later
    assert {trial["plan"]["nodes"] for trial in later} == {1}
    assert any("the study went on with alpha" in note for note in result["notes"])
    until(lambda: not pair.left("beta"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_anywhere_of_a_tuner_that_was_ended(
    number: signal.Signals, hosts: Cluster, tmp_path: Path
) -> None:
    tuner = tune(hosts, tmp_path, "--budget", "9", "--", str(LIGHT), "0.05")
    until(lambda: ranks(hosts, "alpha") and ranks(hosts, "beta"))
    tuner.send_signal(number)
    tuner.communicate()
    until(lambda: not hosts.left("alpha") and not hosts.left("beta"))
