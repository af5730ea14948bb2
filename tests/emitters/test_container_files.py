"""Dockerfile, volume claim and the steps with kubectl."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from emit_machines import one_socket, two_sockets_smt
from golden_texts import Golden
from in_process import ran

from cputune import Cluster, EmittedFile, UsageError, Workload, emit

FAKE = """#!/bin/sh
for word; do printf '%s ' "$word" >> "$CALLS"; done
echo >> "$CALLS"
"""


def named(files: tuple[EmittedFile, ...], name: str) -> str:
    return next(file.text for file in files if file.name == name)


def test_requirements_beside_the_script_are_installed_beside_what_was_measured() -> None:
    case = one_socket()
    workload = Workload(name="run.py", argv=("src/run.py",))
    text = named(emit(case.result, "pytorchjob", workload=workload), "Dockerfile")
    line = "[ -f {} ]; then pip install --no-cache-dir --constraint /opt/constraints.txt"
    assert line.format("src/requirements.txt") in text
    assert line.format("requirements.txt") in text


def test_the_image_trains_as_a_user_who_has_a_name(golden: Golden) -> None:
    cluster = Cluster(user_id=4711)
    text = named(emit(one_socket().result, "pytorchjob", cluster=cluster), "Dockerfile")
    assert "useradd --uid 4711" in text
    assert text.endswith("USER 4711:4711\n")
    with pytest.raises(UsageError) as raised:
        emit(one_socket().result, "pytorchjob", cluster=Cluster(user_id=0))
    golden(raised.value)


def test_the_ipex_era_and_before() -> None:
    case = two_sockets_smt()
    files = emit(case.result, "pytorchjob", **case.options)
    text = named(files, "Dockerfile")
    assert "ARG BASE_IMAGE=python:3.11-slim" in text
    assert "intel_extension_for_pytorch==2.8.0\n" in named(files, "constraints.txt")
    assert "'oneccl_bind_pt==2.8.0+cpu'" in text
    old = {"transformers": "4.30.2", "accelerate": "0.20.3"}
    old |= {
        "torch": "1.13.1",
        "intel_extension_for_pytorch": "1.13.100",
        "oneccl_bind_pt": "1.13.0",
    }
    text = named(emit(case.result, "pytorchjob", versions=old, nodes=1), "Dockerfile")
    assert "ARG BASE_IMAGE=python:3.10-slim" in text


def test_a_version_that_is_no_version_is_not_pinned() -> None:
    case = one_socket()
    hostile = {"torch": "1; reboot", "transformers": "$(reboot)", "accelerate": "'"}
    files = emit(case.result, "pytorchjob", versions=hostile)
    assert "reboot" not in named(files, "Dockerfile").split("FROM", 1)[1]
    assert "reboot" not in named(files, "constraints.txt")


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_the_steps_call_docker_and_kubectl(kind: str, tmp_path: Path, golden: Golden) -> None:
    cluster = Cluster(image="r/i:1", job_name="bert", namespace="team", pvc="claim")
    launch = tmp_path / "my launch"
    launch.mkdir()
    for file in emit(one_socket().result, kind, cluster=cluster):
        (launch / file.name).write_text(file.text, encoding="utf-8")
    for name in ("docker", "kubectl"):
        (tmp_path / name).write_text(FAKE)
        (tmp_path / name).chmod(0o755)
    calls = tmp_path / "calls"

    def step(*words: str) -> list[str]:
        calls.write_text("")
        subprocess.run(
            ["bash", str(launch / f"{kind}.kubectl.sh"), *words],
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls)},
            check=True,
            capture_output=True,
            timeout=120,
        )
        return calls.read_text().splitlines()

    build, push, _ = step("build", "--build-arg", "PIP_INDEX_URL=https://mirror.example.com")
    golden(build)
    assert push.strip() == "push r/i:1"
    assert step("submit")[-1].strip() == f"--namespace team apply --filename {launch}/{kind}.yaml"
    (launch / "image.digest").write_text(f"r/i@sha256:{'0' * 64}\n")
    assert step("submit")[-1].strip() == "--namespace team apply --filename -"
    assert step("delete") == [f"--namespace team delete --ignore-not-found {kind} bert "]
    assert any("--namespace team cp bert-fetch:/data/out" in call for call in step("fetch"))
    with pytest.raises(subprocess.CalledProcessError):
        step("")


def test_a_placeholder_is_refused_when_it_is_used(tmp_path: Path, golden: Golden) -> None:
    for file in emit(one_socket().result, "pytorchjob"):
        (tmp_path / file.name).write_text(file.text, encoding="utf-8")
    answer = ran(["bash", str(tmp_path / "pytorchjob.kubectl.sh"), "build"])
    assert answer.returncode == 3
    golden(answer.stderr)
