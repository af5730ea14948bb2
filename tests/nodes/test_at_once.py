"""A host is lost while both run a trial of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes.cluster import Cluster, two_hosts
from nodes.test_tune_engines import training
from nodes.test_tune_hosts import LIGHT as SCRIPT
from nodes.test_tune_hosts import result_of, tune, until

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(400)]

ONE_HOST_EACH = ("--fix", "nodes=1", "--budget", "6", "--max-time", "4m")


@pytest.fixture
def pair() -> Iterator[Cluster]:
    """Two hosts of one test's own."""
    with two_hosts() as made:
        yield made


def test_a_host_that_is_cut_off_ends_what_runs_there_alone(pair: Cluster, tmp_path: Path) -> None:
    words = ("--knobs", "ranks,threads", "--", str(SCRIPT), "8")  # the search outlives the silence
    tuner = tune(pair, tmp_path, *ONE_HOST_EACH, *words)
    until(lambda: all(training(pair, name, SCRIPT) for name in pair.names))
    pair.cut("beta")
    result = result_of(tuner, tmp_path)
    assert any("the study goes on with alpha" in note for note in result["notes"])
    lost = [trial for trial in result["trials"] if trial["kind"] == "host lost"]
    assert len(lost) <= 1, json.dumps(lost)
    assert sum(trial["state"] != "failed" for trial in result["trials"]) > 1
    until(lambda: not pair.left("beta"))
