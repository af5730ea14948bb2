"""Launches on several hosts: who is here, how ranks over there are told to report, what is said."""

import base64
import bz2
import json
import os
import socket
import zlib
from dataclasses import replace

import pytest
from golden_texts import Golden
from test_verify_checks import PLAN, launched, rank

from cputune.inside import SCRATCH_VARIABLE, SOCKET_VARIABLE
from cputune.ranks.engines import is_here
from cputune.verifier import scripts
from cputune.verifier.checks import outcomes
from cputune.verifier.records import Artefact, Expected
from cputune.verifier.scripts import over_hosts

TWO = replace(PLAN, nodes=2)
NOWHERE = "nowhere.invalid"


def of_host(number, host, cpu):
    return rank(number, host=host, affinity=[cpu], world_size=4)


def both(names=("alpha", "alpha", "beta", "beta"), cpus=(0, 1, 0, 1)):
    return launched(*(of_host(n, names[n], cpus[n]) for n in range(4)))


def told(seen):
    checks = outcomes(seen, Expected(plan=TWO, hosts=("alpha", "beta")), "mpirun")
    return {check.name: check for check in checks}


def test_the_ranks_of_every_host_are_compared_with_the_plan(golden: Golden):
    found = told(both())
    assert {check.state for check in found.values()} == {"passed"}
    golden(found["hosts"].summary)
    assert told(both(cpus=(0, 1, 4, 5)))["affinity"].state == "failed"


@pytest.mark.parametrize(
    ("names", "state"),
    [
        (("alpha", "beta", "alpha", "beta"), "failed"),  # dealt out one by one
        (("alpha", "alpha", "beta", "gamma"), "failed"),
        (("alpha",) * 4, "not checked"),  # machines of one name cannot be told apart
    ],
)
def test_whether_each_node_was_a_machine_of_its_own(names, state):
    assert told(both(names))["hosts"].state == state


def test_this_machine_is_known_by_its_name_and_its_addresses():
    assert is_here(socket.gethostname())
    assert is_here("127.0.0.1")
    assert not is_here(NOWHERE)


def tried(folder, **expected):
    artefact = Artefact(path=folder / "torchrun.sh", format="torchrun", text="#!/bin/sh\n")
    (folder / "rank.py").write_text("the rank")
    (folder / "notes.txt").write_text("mine")
    return list(over_hosts(artefact, Expected(plan=TWO, **expected), None, os.environ))


def test_a_launch_is_brought_to_its_hosts_as_a_trial_is(tmp_path, monkeypatch):
    def observe(begin, **_):
        for command in begin({SOCKET_VARIABLE: "/tmp/socket"}):
            packed = base64.b85decode(command["input"].splitlines()[1].strip())
            reader = bz2 if packed.startswith(b"BZh") else zlib
            questions.append(json.loads(reader.decompress(packed)))
        raise OSError("enough")

    questions = []
    monkeypatch.setattr(scripts, "observe", observe)
    (check,) = tried(tmp_path, hosts=("127.0.0.1", "127.0.0.2"))
    assert (check.state, check.summary) == ("failed", "it cannot be started: enough")
    here, there = (question["env"] for question in questions)
    assert [one["NODE_RANK"] for one in (here, there)] == ["0", "1"]
    assert there[SCRATCH_VARIABLE] == "{folder}/scratch"
    assert there[SOCKET_VARIABLE] == "relay:{folder}/socket"
    files = questions[1]["files"]
    assert files["launch/rank.py"] == "the rank"
    assert "launch/notes.txt" not in files
    assert questions[1]["argv"] == ["bash", "{folder}/launch/torchrun.sh"]


def test_a_host_that_is_not_reached_is_not_checked_with_its_fix(tmp_path):
    (check,) = tried(tmp_path, hosts=("127.0.0.1", NOWHERE))
    assert check.state == "not checked"
    assert NOWHERE in check.summary


def test_a_launch_that_does_not_name_its_hosts_is_not_tried(tmp_path, golden: Golden):
    (check,) = tried(tmp_path)
    assert check.state == "not checked"
    golden(check.summary)
    assert "--hosts" in check.remedy
