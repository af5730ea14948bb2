"""Dockerfile, volume claim and the steps with kubectl."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from emit_machines import one_socket
from golden_texts import Golden

from cputune import Cluster, emit

FAKE = """#!/bin/sh
for word; do printf '%s ' "$word" >> "$CALLS"; done
echo >> "$CALLS"
"""


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
