"""How each way to a host is typed, which is taken, and what its complaints mean."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from shutil import which

import pytest
from rows import every_row

from cputune import CannotError, Node, UsageError
from cputune.host import Host
from cputune.host.remote.named import allocated_nodes, parse_distinct_hosts
from cputune.host.remote.reach import TOO_OLD, Mpirun, Reach, Srun, Ssh, find_reach

NODE = Node(name="n2")


def test_ssh_asks_no_one_and_takes_one_word_for_the_command() -> None:
    argv = Ssh(words=("ssh", "-F", "my config")).argv(NODE, ("sh", "-c", "echo 'a b'"))
    options = "BatchMode=yes ConnectTimeout=10 ServerAliveInterval=5 ServerAliveCountMax=4"
    assert argv[:4] == ("ssh", "-F", "my config", "-T")
    assert argv[4:-2:2] == ("-o",) * 5
    assert argv[5:-2:2] == (*options.split(), "LogLevel=ERROR")
    assert argv[-2:] == ("n2", """sh -c 'echo '"'"'a b'"'"''""")


@every_row(
    ("reach", "words"),
    [
        (Srun(), "srun -w n2 -N1 -n1 --overlap --cpu-bind=none --quiet sh"),
        (Mpirun(dialect="mpich"), "mpirun -hosts n2 -n 1 -bind-to none sh"),
        (Mpirun(dialect="intelmpi"), "mpirun -hosts n2 -n 1 sh"),
        (Mpirun(dialect="openmpi4"), "mpirun --host n2:1 -n 1 --bind-to none sh"),
    ],
)
def test_launchers_start_one_process_that_is_bound_to_nothing(reach: Reach, words: str) -> None:
    assert " ".join(reach.argv(NODE, ("sh",))).endswith(words)


def test_what_is_set_for_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Mpirun(dialect="intelmpi").variables == {"I_MPI_PIN": "0"}
    for user, names in (
        (0, ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]),
        (1, []),
        (1000, []),
    ):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert list(Mpirun(dialect="openmpi4").variables) == names


def test_the_way_that_is_there_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def there(*programs: str) -> None:
        folder = tmp_path / "-".join(programs or ("none",))
        folder.mkdir()
        for program in programs:
            (folder / program).write_text("#!/bin/sh\n")
            (folder / program).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    there("ssh", "srun")
    assert find_reach() == find_reach("ssh", allocated=True) == Ssh(words=(str(which("ssh")),))
    assert find_reach(allocated=True) == Srun(program=str(which("srun")))
    assert find_reach(ssh="ssh -F 'my file'") == Ssh(words=("ssh", "-F", "my file"))
    there()
    mpi = ("/mpi/mpirun", "mpich")
    assert find_reach(mpi=mpi) == Mpirun(program="/mpi/mpirun", dialect="mpich")
    for missing, asked in (
        ("an mpirun that passes input on (Open MPI 5 does not)", {"mpi": ("mpirun", "openmpi5")}),
        ("my", {"ssh": "my ssh"}),
        ("the program of --ssh", {"ssh": ""}),
        ("srun", {"manner": "srun"}),
        ("ssh", {"manner": "ssh"}),
        ("mpirun", {"manner": "mpirun"}),
        ("ssh, srun or mpirun", {}),
    ):
        with pytest.raises(CannotError) as caught:
            find_reach(**asked)
        assert str(caught.value) == f"other hosts cannot be reached: {missing} was not found"
    with pytest.raises(UsageError, match="cannot read --ssh"):
        find_reach(ssh="ssh 'F")


@every_row(
    ("reach", "code", "said", "reason"),
    [
        (Ssh(), 255, "ssh: connect to host n2 port 22: Connection refused", "no sshd listens"),
        (Ssh(), 255, "ssh: connect to host n2 port 22: No route to host", "no route to it"),
        (Ssh(), 255, "ssh: connect to host n2 port 22: Connection timed out", "it gave no answer"),
        (Ssh(), 255, "kex_exchange_identification: Connection closed by remote host", "was cut"),
        (
            Ssh(),
            255,
            "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\nHost key verification failed.",
            "its host key has changed",
        ),
        (Ssh(), 255, "", "the connection was cut"),
        (Ssh(), 127, "", "there is no python3"),
        (Ssh(), 1, "bash: python3: command not found", "there is no python3"),
        (Ssh(), 126, "denied", "it ended with 126: denied"),
        (Ssh(), 128, "", "it ended with 128"),
        (Ssh(), 1, "FileNotFoundError: [Errno 2] No usable temporary directory", "no folder"),
        (Ssh(), 3, f"first\nsecond\n{'x' * 999}\n", f"it ended with 3: {'x' * 200}"),
        (Ssh(), 0, "", "has ended"),
        (Srun(), 1, "srun: error: Unable to create step: Invalid job id specified", "has ended"),
        (Srun(), 1, "srun: error: Invalid node name specified", "not in our allocation"),
        (Mpirun(dialect="mpich"), 255, "n2: Permission denied (publickey).", "rejects our key"),
    ],
)
def test_a_complaint_is_explained(reach: Reach, code: int, said: str, reason: str) -> None:
    explained, _ = reach.explain(NODE, code, said)
    assert reason in explained
    assert len(explained) <= len("it ended with 3: ") + 200


def test_of_an_old_python_it_is_said_how_old_it_is() -> None:
    said = ("its Python is 3.6", "install Python 3.7 or later on n2")
    assert Ssh().explain(NODE, 1, f"{TOO_OLD} 3.6") == said


class FakeLogin(Host):
    """Where a job has been granted."""

    def __init__(self, **variables: str) -> None:
        self._variables = variables

    def environment(self) -> dict[str, str]:
        return self._variables


def test_the_hosts_of_an_allocation() -> None:
    assert allocated_nodes(FakeLogin()) == ()
    counts = {"SLURM_TASKS_PER_NODE": "2(x3)", "SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}
    found = allocated_nodes(FakeLogin(SLURM_JOB_NODELIST="n[1-3]", **counts))
    assert found == tuple(Node(name=f"n{k}", slots=2, cpus=c) for k, c in enumerate((8, 8, 4), 1))
    uneven = FakeLogin(SLURM_JOB_NODELIST="a,b", SLURM_TASKS_PER_NODE="2,1")
    assert [node.slots for node in allocated_nodes(uneven)] == [None, None]
    alone = FakeLogin(SLURM_JOB_NODELIST="a", SLURM_TASKS_PER_NODE="2")
    assert allocated_nodes(alone) == (Node(name="a", slots=2),)
    with pytest.raises(UsageError, match="is not a host name"):
        allocated_nodes(FakeLogin(SLURM_JOB_NODELIST="n[x"))


def test_a_step_says_what_it_wants_whatever_was_asked_for_before() -> None:
    words = Srun().argv(Node(name="n2", cpus=8), ("sh",))
    removed = {after for word, after in pairwise(words) if word == "-u"}
    assert {"SRUN_CPUS_PER_TASK", "SLURM_EXACT", "SLURM_CPUS_PER_TASK"} <= removed
    said = "srun -w n2 -N1 -n1 --overlap --cpu-bind=none --quiet --cpus-per-task=8 sh"
    assert " ".join(words).endswith(said)


def test_a_user_logs_in_by_ssh_alone() -> None:
    (node,) = parse_distinct_hosts("me@n2")
    assert node.name == "n2"
    assert "me@n2" in Ssh().argv(node, ("true",))
    assert "n2" in Srun().argv(node, ("true",))


def test_a_host_is_named_once() -> None:
    assert [node.name for node in parse_distinct_hosts("a:2, b")] == ["a", "b"]
    with pytest.raises(UsageError, match="names a twice"):
        parse_distinct_hosts("a,b,a:2")
