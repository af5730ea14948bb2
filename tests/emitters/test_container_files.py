"""Dockerfile, volume claim and the steps with kubectl."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from emit_machines import one_socket
from golden_texts import Golden

from cputune import Cluster, EmittedFile, UsageError, emit

FAKE = """#!/bin/sh
for word; do printf '%s ' "$word" >> "$CALLS"; done
echo >> "$CALLS"
"""


def named(files: tuple[EmittedFile, ...], name: str) -> str:
    return next(file.text for file in files if file.name == name)


def test_the_image_trains_as_a_user_who_has_a_name(golden: Golden) -> None:
    cluster = Cluster(user_id=4711)
    text = named(emit(one_socket().result, "pytorchjob", cluster=cluster), "Dockerfile")
    assert "useradd --uid 4711" in text
    assert text.endswith("USER 4711:4711\n")
    with pytest.raises(UsageError) as raised:
        emit(one_socket().result, "pytorchjob", cluster=Cluster(user_id=0))
    golden(raised.value)


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
