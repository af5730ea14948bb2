"""The doctor over hosts with sshds of their own: what is planted is found, and nothing stays."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from in_process import ran
from nodes.cluster import Cluster, two_hosts
from nodes.namespaces import Odd, until

pytestmark = pytest.mark.nodes

SLOW_SECONDS = 120
"""What a busy machine may need beside a limit."""

OPTIONS = ("--json", "--fail-on", "never", "--host-timeout", "120")
DOCTOR = (sys.executable, "-m", "cputune", "doctor", *OPTIONS)


def doctor(
    hosts: Cluster, *more: str, names: str = "alpha,beta", ssh: str | None = None
) -> dict[str, Any]:
    words = " ".join(hosts.ssh) if ssh is None else ssh
    argv = [*DOCTOR, "--hosts", names, "--ssh", words, *more]
    done = ran(argv, timeout=600)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def evidence(document: dict[str, Any]) -> dict[str, str]:
    told = document["findings"]
    return {one["code"]: one["evidence"] for one in told if one["code"].startswith("hosts-")}


def nothing_stays(hosts: Cluster) -> None:
    for name in hosts.names:
        until(lambda name=name: not hosts.left(name))
        assert list((hosts.folder / name / "tmp").iterdir()) == []


def test_hosts_that_are_alike_have_no_difference(hosts: Cluster) -> None:
    seen = doctor(hosts)
    assert evidence(seen) == {}
    assert [host["reached"] for host in seen["hosts"]] == [True, True]
    nothing_stays(hosts)


def test_what_was_planted_is_found() -> None:
    odd = Odd(cpus=(0,), versions={"transformers": "4.46.0", "torch": "2.6.0"})
    with two_hosts(beta=odd) as hosts:
        found = evidence(doctor(hosts))
        assert set(found) == {
            "hosts-cores",
            "hosts-training-stack",
            "hosts-libraries",
        }
        assert "0 on beta" in found["hosts-cores"]
        assert "2.6.0 on beta" in found["hosts-training-stack"]
        assert "4.46.0 on beta" in found["hosts-libraries"]
        nothing_stays(hosts)


def test_the_python_of_one_host_is_away() -> None:
    with two_hosts(beta=Odd(hidden=(Path(sys.executable).parent,))) as hosts:
        seen = doctor(hosts)
        assert f"{sys.executable} (" in evidence(seen)["hosts-python"]
        assert seen["hosts"][1]["python_path"] != sys.executable
        nothing_stays(hosts)


def test_names_and_keys_that_lead_nowhere(hosts: Cluster, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    seen = doctor(hosts, names="beta,nowhere.invalid")
    assert evidence(seen) == {"hosts-unreachable": "nowhere.invalid: its name is not known here"}
    refused = doctor(hosts, names="beta", ssh=_with_key(hosts, key, tmp_path))
    assert evidence(refused) == {"hosts-unreachable": "beta: it rejects our key"}
    stranger = f"{' '.join(hosts.ssh)} -o GlobalKnownHostsFile=/dev/null"
    unknown = doctor(hosts, names="beta", ssh=stranger)
    assert evidence(unknown) == {"hosts-unreachable": "beta: its host key is not known here"}
    nothing_stays(hosts)


def test_a_host_that_greets_and_says_nothing_takes_no_longer_than_its_limit(
    hosts: Cluster, tmp_path: Path
) -> None:
    """The sleep lasts 600 s. The rest is a Python that begins, here and on the other host."""
    ssh = tmp_path / "ssh"
    greets = 'case "$*" in *" beta "*) echo Welcome to beta; exec sleep 600;; esac'
    ssh.write_text(f'#!/bin/sh\n{greets}\nexec {" ".join(hosts.ssh)} "$@"\n')
    ssh.chmod(0o755)
    began = time.monotonic()
    seen = doctor(hosts, "--host-timeout", "12", ssh=str(ssh))
    took = time.monotonic() - began
    assert evidence(seen) == {"hosts-unreachable": "beta: it gave no answer in 12 s"}
    assert all(host["seconds"] < 12 + SLOW_SECONDS for host in seen["hosts"])
    assert took < 12 + SLOW_SECONDS
    nothing_stays(hosts)


def _with_key(hosts: Cluster, key: Path, folder: Path) -> str:
    """The ssh of the hosts with another key than theirs."""
    config = Path(hosts.ssh[-1]).read_text()
    lines = [f"IdentityFile {key}" if "IdentityFile" in row else row for row in config.split("\n")]
    (folder / "ssh_config").write_text("\n".join(lines))
    return f"ssh -F {folder / 'ssh_config'}"
