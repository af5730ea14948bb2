"""Trials of one host each run on both hosts at once, as their own emitted launches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes.cluster import Cluster, two_hosts
from nodes.test_tune_hosts import LIGHT as SCRIPT
from nodes.test_tune_hosts import ranks, result_of, tune, until

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(400)]

ONE_HOST_EACH = ("--fix", "nodes=1", "--budget", "6", "--max-time", "6m")


@pytest.fixture
def pair() -> Iterator[Cluster]:
    """Two hosts of one test's own."""
    with two_hosts() as made:
        yield made


def both_train(hosts: Cluster) -> bool:
    return bool(ranks(hosts, "alpha") and ranks(hosts, "beta"))


def test_two_trials_run_at_once_on_two_hosts(pair: Cluster, tmp_path: Path) -> None:
    """What the script says of its knobs is not so: its trials run all the same, and fail."""
    tuner = tune(pair, tmp_path, *ONE_HOST_EACH, "--", str(SCRIPT), "0.05")
    until(lambda: both_train(pair))
    result = result_of(tuner, tmp_path)
    there = [trial for trial in result["trials"] if trial.get("elsewhere")]
    assert there, [trial["reason"] for trial in result["trials"]]
    assert all(trial["plan"]["nodes"] == 1 for trial in result["trials"])
    until(lambda: not pair.left("alpha") and not pair.left("beta"))


def test_a_host_that_is_cut_off_ends_what_runs_there_alone(pair: Cluster, tmp_path: Path) -> None:
    words = ("--knobs", "ranks,threads", "--", str(SCRIPT), "0.05")
    tuner = tune(pair, tmp_path, *ONE_HOST_EACH, *words)
    until(lambda: both_train(pair))
    pair.cut("beta")
    result = result_of(tuner, tmp_path)
    assert any("the study went on with alpha" in note for note in result["notes"])
    lost = [trial for trial in result["trials"] if trial["kind"] == "host lost"]
    assert len(lost) <= 1, json.dumps(lost)
    assert sum(trial["state"] != "failed" for trial in result["trials"]) > 1
    until(lambda: not pair.left("beta"))
