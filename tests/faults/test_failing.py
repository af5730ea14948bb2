"""Launches that fail for real: what the doctor says before, during and after.

The few fast ones run each time; ``make test-scripts`` (the weekly workflow) runs all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import pytest
from faults.failing import FAILING, Failing
from in_process import ran

from cputune.doctor.symptoms import explain

READY_SECONDS = 90
CGROUPS = Path("/sys/fs/cgroup")
LOG = "job.log"


class Started:
    """A row of the table in a folder, with what it is started in."""

    def __init__(self, row: Failing, folder: Path, group: Path | None, port: int) -> None:
        self.row, self.folder, self.group = row, folder, group
        filled = {"python": sys.executable, "port": port}
        self.words = [word.format(**filled) for word in row.launch]
        script = row.script.replace("{port}", str(port))
        for name, text in {"train.py": script, **row.files}.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    def argv(self, *words: str) -> list[str]:
        """The words, started inside of namespaces, limits and the cgroup of the row."""
        argv = list(words)
        if self.row.limits:
            argv = ["prlimit", *self.row.limits, *argv]
        if self.row.inside:
            argv = [*shlex.split(self.row.inside), *argv]
        if self.group is not None:
            enter = f'echo $$ > {self.group}/cgroup.procs && exec "$@"'
            argv = ["sh", "-c", enter, "sh", *argv]
        return argv

    @property
    def environment(self) -> dict[str, str]:
        bin_folder = str(Path(sys.executable).parent)
        path = f"{bin_folder}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, **self.row.variables}

    def doctor(self, *words: str, inside: bool = False) -> list[dict[str, str]]:
        """The findings of the doctor in this folder."""
        argv = [
            str(Path(sys.executable).with_name("cputune")),
            "doctor",
            "--json",
            "--fail-on",
            "never",
            *words,
        ]
        if inside:
            argv = self.argv(*argv)
        done = ran(argv, cwd=self.folder, env=self.environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["findings"]

    def log(self) -> str:
        """What the launch writes until it fails."""
        argv = self.argv(*self.words)
        streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
        done = subprocess.run(
            argv,
            stdout=subprocess.PIPE,
            cwd=self.folder,
            env=self.environment,
            text=True,
            errors="replace",
            timeout=200,
            check=False,
            **streams,
        )
        ended = done.stdout
        if done.returncode < 0:  # as a shell says it
            ended += f"{signal.strsignal(-done.returncode)}\n"
        assert done.returncode != 0, "it has to fail"
        return ended

    @contextlib.contextmanager
    def running(self) -> Iterator[int]:
        """The launch, once its ranks are ready."""
        job = subprocess.Popen(
            self.argv(*self.words),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + READY_SECONDS
            while len(list(self.folder.glob("ready-*"))) < self.row.hangs:
                assert job.poll() is None, "it has to hang"
                assert time.monotonic() < until, "its ranks did not start"
                time.sleep(0.2)
            time.sleep(2)
            yield job.pid
        finally:
            for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(2)


def _params() -> Iterator[object]:
    for name, row in FAILING.items():
        marks = []
        if not row.fast:
            marks = [pytest.mark.matrix, pytest.mark.slow, pytest.mark.torch]
        yield pytest.param(row, id=name, marks=marks)


@pytest.fixture
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Started]:
    row: Failing = request.param
    if not row.fast and util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listener.getsockname()[1]
        if not row.listens:
            listener.close()
        group = None
        if row.cgroup is not None:
            group = _cgroup(*row.cgroup)
            stack.callback(_removed, group)
        job = Started(row, tmp_path, group, port)
        tool = job.argv("true")
        if shutil.which(tool[0]) is None or ran(tool, cwd=tmp_path).returncode != 0:
            pytest.skip("this machine does not let a user make it")
        yield job


def _cgroup(controller: str, settings: dict[str, str]) -> Path:
    group = CGROUPS / controller / f"cputune-{os.getpid()}"
    try:
        group.mkdir()
        for name, text in settings.items():
            (group / name).write_text(text)
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    return group


def _removed(group: Path) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.2)


@pytest.mark.parametrize("started", list(_params()), indirect=True)
def test_a_launch_that_fails(started: Started) -> None:
    row = started.row
    if row.before:
        codes = {one["code"] for one in started.doctor("--", *started.words, inside=True)}
        assert codes & set(row.before)
    if row.hangs:
        with started.running() as pid:
            findings = started.doctor("--pid", str(pid))
        assert {one["code"] for one in findings} >= set(row.during)
        assert any(row.shown in one["evidence"] for one in findings), findings
    if row.after:
        text = started.log()
        (started.folder / LOG).write_text(text)
        (finding, *_) = started.doctor("--symptom", LOG)
        assert finding["code"] == "symptom"
        explanation = explain(text)
        assert explanation.symptom.name in row.after, text[-2000:]
        assert row.says in finding["evidence"]
