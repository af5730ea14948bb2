"""``cputune doctor --hosts`` through an ssh that is a script of ours, and what it refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from in_process import Run

SSH = """for last; do :; done
case "$*" in
  *" refused "*) echo "refused: Permission denied (publickey)." >&2; exit 255;;
  *" nowhere "*) echo "ssh: Could not resolve hostname nowhere: Name or service not known" >&2
    exit 255;;
  *" bare "*) exec env -i PATH=/nowhere /bin/sh -c "exit 127";;
  *" slow "*) exec sleep 60;;
esac
exec sh -c "$last"
"""


@pytest.fixture
def ssh(tmp_path: Path) -> str:
    script = tmp_path / "ssh.sh"
    script.write_text(SSH)
    return f"sh {script}"


@pytest.fixture
def doctor(cputune: Run) -> Run:
    return partial(cputune, "doctor")


def test_one_row_per_host_then_what_is_wrong(ssh: str, doctor: Run) -> None:
    code, out, err = doctor("--hosts", "node1,refused,nowhere,bare", "--ssh", ssh)
    assert (code, err) == (1, "")
    said, _, rest = out.partition("\nDo now: ")
    means, sure = said, rest.splitlines()[1]
    assert means.startswith("Training fails, or is wrong, until something is fixed: ")
    assert sure.startswith("How sure: read from 1 of 4 h")
    assert "refused  not reached: it rejects our key" in out
    for words in ("ssh-copy-id refused", "add nowhere to /etc/hosts", "bare: there is no python3"):
        assert words in out


def test_a_launch_is_judged_for_each_host(ssh: str, doctor: Run) -> None:
    words = ("OMP_NUM_THREADS=5000", "python", "train.py", "--tf32", "True", "--do_train")
    ended = doctor("--hosts", "node1", "--ssh", ssh, "--json", "--", "env", *words)
    found = {one["code"]: one["evidence"] for one in json.loads(ended.out)["findings"]}
    assert "--tf32 needs a GPU" in found["argument-no-cpu"]
    assert found["threads-affinity"].startswith("node1: the launch: OMP_NUM_THREADS=5000")


def test_a_host_that_does_not_answer_is_not_waited_for(ssh: str, doctor: Run) -> None:
    ended = doctor("--hosts", "slow", "--ssh", ssh, "--json", "--host-timeout", "1")
    (host,) = json.loads(ended.out)["hosts"]
    assert (host["reached"], host["reason"]) == (False, "it gave no answer in 1 s")


def test_a_host_file(ssh: str, tmp_path: Path, doctor: Run) -> None:
    (tmp_path / "hosts").write_text("node1 slots=2\n")
    listed = ("--hostfile", str(tmp_path / "hosts"), "--ssh", ssh)
    code, out, _ = doctor(*listed, "--only", "hosts-cores")
    assert code == 0
    assert "\nnode1 " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--hosts", "a,b,a:2"), "--hosts names a twice"),
        (("--hosts", "a,-oProxyCommand=x"), "is not a host name"),
        (("--hosts", "a", "--hostfile", "f"), "exclude each other"),
        (("--hosts", "slurm"), "--hosts slurm works only inside a Slurm allocation"),
        (("--hosts", "a", "--root", "/tmp"), "--root and --hosts exclude each other"),
        (("--hosts", "a", "--ssh", "no-such-ssh -F x"), "no-such-ssh was not found"),
        (("--hosts", "a", "--ssh", "ssh 'x"), "cannot read --ssh"),
        (("--hosts", "a", "--through", "srun", "--ssh", "ssh"), "--ssh cannot be combined with"),
        (("--ssh", "ssh"), "--through and --ssh need hosts"),
        (("--hostfile", "/no/file"), "cannot read /no/file"),
    ],
)
def test_bad_input_is_named_with_its_fix(
    arguments: tuple[str, ...], message: str, doctor: Run
) -> None:
    code, _, err = doctor(*arguments)
    assert code in (2, 3)
    assert message in err
    assert "hint:" in err


def test_inside_an_allocation_its_hosts_are_meant(
    ssh: str, monkeypatch: pytest.MonkeyPatch, doctor: Run
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node1,nowhere")
    ended = doctor("--through", "ssh", "--ssh", ssh, "--json")
    assert [host["name"] for host in json.loads(ended.out)["hosts"]] == ["node1", "nowhere"]
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    ended = doctor("--json", "--fail-on", "never")
    assert (ended.code, json.loads(ended.out)["schema"]) == (0, "cputune.doctor/1")
