"""A host that tells of itself is seen as it sees itself, and one that does not is a finding."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from typing import Any

import pytest
from nodes.fakes import FakeReach

import cputune
from cputune import CannotError, HostFacts, Node
from cputune.host.remote.ask import Answer, ask_each, script_text
from cputune.host.remote.probed import Probed, _Shelf, probe_each
from cputune.host.remote.reach import Mpirun

LASTING = ("cpu", "settings", "python", "packages", "libraries", "launchers", "network")
"""What does not change between two looks."""

NODE = Node(name="node1")


class FakeMpirun(FakeReach):
    """It gives its rank the variables of an mpirun."""

    sets = Mpirun.sets


def probed(reach: FakeReach | None = None, **how: Any) -> Probed:
    arrived: list[Probed] = []
    (told,) = probe_each([NODE], reach or FakeReach(), on_probed=arrived.append, **how)
    assert isinstance(told, Probed), told
    assert arrived == [told]
    return told


def silent(*command: str, seconds: float = 30.0) -> str:
    (told,) = probe_each([NODE], FakeReach(instead={"node1": command}), seconds)
    assert isinstance(told, Answer)
    return told.unreachable.reason


def lasting(facts: HostFacts) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in LASTING}


def test_a_probe_of_another_host_tells_what_one_here_tells() -> None:
    far, near = probed().facts, cputune.probe()
    assert lasting(far) == lasting(near)
    assert far.topology.cores == near.topology.cores
    assert far.limits.memory_bytes == near.limits.memory_bytes
    assert far.limits.open_files == near.limits.open_files
    assert [unknown.fact for unknown in far.unknown] == [unknown.fact for unknown in near.unknown]
    assert far.recorded is near.recorded


@pytest.mark.parametrize("minor", [7, 8, 9, 10, 11, 12, 13, 14])
def test_any_python_from_3_7_on_answers(minor: int) -> None:
    python = f"python3.{minor}"
    if subprocess.run(["sh", "-c", f"{python} -c ''"], capture_output=True).returncode:
        pytest.skip(f"there is no {python}")
    assert probed(python=python).facts.python.startswith(f"3.{minor}.")  # type: ignore[union-attr]


def test_what_is_sent_needs_no_more_than_python_3_7() -> None:
    ast.parse(script_text("probe.py"), feature_version=(3, 7))


def test_an_older_python_and_none_are_said() -> None:
    assert silent("sh", "-c", "exit 127") == "there is no python3"
    told = probe_each([NODE], FakeReach(), python="/no/python")[0]
    assert isinstance(told, Answer)
    assert "there is no /no/python" in str(told.unreachable)
    old = "echo cputune needs Python 3.7 here, and this is 3.6 >&2; exit 1"
    assert silent("sh", "-c", old) == "its Python is 3.6"


def test_of_several_pythons_the_first_is_missed() -> None:
    answers: list[Answer] = []
    told = ask_each(
        [NODE, NODE],
        FakeReach(),
        "",
        lambda node: {},
        pythons=lambda node: ("/no/a", "/no/b"),
        on_answer=answers.append,
    )
    assert ["there is no /no/a" in str(answer.unreachable) for answer in told] == [True, True]
    assert len(answers) == 2
    assert Answer(node=NODE).seconds == 0
    assert Answer(node=NODE, began=2.0, ended=5.0).seconds == 3


def test_a_way_that_cannot_be_started_is_no_hosts_fault() -> None:
    with pytest.raises(CannotError, match="cannot start /no/ssh: No such file or directory"):
        probe_each([NODE], FakeReach(started=("/no/ssh", "-T")))


def test_what_a_host_said_last_is_reported_if_it_gives_no_answer() -> None:
    said = f"echo one >&2; echo two >&2; echo {'x' * 999} >&2; sleep 600"
    assert silent("sh", "-c", said, seconds=1) == f"it gave no answer in 1 s: {'x' * 200}"


def test_the_alarm_over_there_rings_after_we_have_given_up() -> None:
    left = "round(signal.getitimer(signal.ITIMER_REAL)[0])"
    script = f"import json, signal\nprint(json.dumps({{'left': {left}}}))"
    (answer,) = ask_each([NODE], FakeReach(), script, lambda node: {})
    assert answer.content == {"left": 32}


def test_variables_of_an_mpirun_that_starts_the_probe_are_not_those_of_the_host() -> None:
    started = ("env", "OMPI_COMM_WORLD_RANK=0", "PMIX_RANK=0", "PMI_RANK=0", "OMP_NUM_THREADS=1")
    plain = probed(FakeReach(started=started)).facts.environment
    assert {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "OMP_NUM_THREADS"} <= set(plain)
    by_mpirun = probed(FakeMpirun(started=started)).facts.environment
    assert by_mpirun["OMP_NUM_THREADS"] == "1"
    assert not {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"} & set(by_mpirun)


def test_noise_of_a_login_shell_is_passed_over() -> None:
    noisy = FakeReach(started=("sh", "-c", 'echo "Welcome"; echo "{odd"; exec "$0" "$@"'))
    assert probed(noisy).facts.python


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("", "its answer is not readable"),
        ("x" * 99, f"its answer is not readable: '{'x' * 60}'"),
        ("{}", "its answer cannot be used (KeyError: 'metadata')"),
        ('{"metadata": 5, "record": []}', "its answer cannot be used (TypeError"),
        ('{"metadata": {"names": 5}, "record": {}}', "its answer cannot be used (KeyError"),
    ],
)
def test_an_answer_that_cannot_be_read_is_that_hosts_finding(says: str, words: str) -> None:
    assert silent("sh", "-c", f"echo {says!r}").startswith(words)


def test_a_host_that_greets_and_says_nothing_is_given_up_at_the_limit() -> None:
    started = time.monotonic()
    assert silent("sh", "-c", "echo hello; sleep 600", seconds=1) == "it gave no answer in 1 s"
    assert time.monotonic() - started < 60  # and not the 600 of its sleep


def test_what_is_on_a_host_is_reported_to_compare(tmp_path: Any) -> None:
    (tmp_path / "a").write_text("one")
    paths = [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "b")]
    told = probed(content=paths).content
    assert told[paths[0]] == "folder"
    assert str(told[paths[1]]).startswith("3 7692c3ad")
    assert told[paths[2]] is None
    assert probed().python == sys.executable


def test_a_host_is_asked_what_it_makes_of_names() -> None:
    told = probed(names=("localhost", "no such name"))
    assert "127.0.0.1" in told.names["localhost"] or "::1" in told.names["localhost"]
    assert isinstance(told.names["no such name"], str)
    assert told.own is None or isinstance(told.own, str)
    assert (probed().names, probed().own) == ({}, None)


def test_a_path_exists_where_its_folder_was_listed() -> None:
    host = probed(content=("/no/file",))
    assert host.content == {"/no/file": None}
    files = ("/proc/cpuinfo", "/dev/null", "/dev/null/", "/dev/no-such", "/no/such")
    assert [host.host.exists(path) for path in files] == [True, True, True, False, False]


def test_a_package_of_which_nothing_was_told_has_no_age() -> None:
    shelf = _Shelf({"a": ["b"]}, {"a": ["c"]}, {"a": 7.0})
    told = [(shelf.names(path), shelf.head(path), shelf.age(path)) for path in ("a", "z")]
    assert told == [(("b",), ["c"], 7.0), ((), [], 0.0)]
