"""Every "Do now" of the doctor runs as it is printed: collected in many contexts, typed in bash."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hosts.builder import Cgroup, machine
from in_process import Run, typed
from rows import like_others

SCRIPT = "import argparse\nargparse.ArgumentParser().parse_known_args()\n"
REFUSED = "python run_qa.py --use_cpu --output_dir out --do_train --evaluation_strategy no\n"
"""A launch with a flag that the installed transformers refuses, and another one in its place."""
SOUND = "python run_qa.py --use_cpu --output_dir out --do_train\n"
YAML = "distributed_type: MULTI_CPU\nnum_processes: 1\nuse_cpu: true\nno_such_key: 1\n"
SSH = """\
for word; do host=$last; last=$word; done
case "$*" in *" gone "*) exit 255;; esac
sh -c "$last" | sed -u "s/$(cat /proc/sys/kernel/random/boot_id)/$host/"
"""
"""Each host has booted by itself."""
PIP = """import sys
from packaging.requirements import Requirement
from pip._internal.commands import create_command
options, words = create_command(sys.argv[1]).parse_args(sys.argv[2:])
assert words
for word in words:
    Requirement(word)
"""
"""pip's own parser and the form of a requirement, without an installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the doctor is asked, and with which variables.

    ``begins`` is what the command to run begins with.
    """

    words: tuple[str, ...]
    begins: str
    variables: dict[str, str] = field(default_factory=dict)


EXPLAIN = "cputune doctor --explain "
CONTEXTS = {
    "nothing serious": Context(words=("--only", "advice"), begins="cputune tune"),
    "a recipe": Context(
        words=("--only", "advice", "--recipe", "bert-base-squad"),
        begins="cputune tune --recipe bert-base-squad",
    ),
    "a python": Context(
        words=("--only", "advice", "--python", sys.executable),
        begins=f"cputune tune --python {sys.executable}",
    ),
    "a thread count that is none": Context(
        words=("--only", "threads-malformed"),
        begins="export OMP_NUM_THREADS=",
        variables={"OMP_NUM_THREADS": "many"},
    ),
    "what a launch left": Context(
        words=(),
        begins="unset ",
        variables={"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"},
    ),
    "a preload that is gone": Context(
        words=("--only", "preload-dead"),
        begins="unset LD_PRELOAD",
        variables={"LD_PRELOAD": "/gone/libx.so"},
    ),
    "a variable of another version": Context(
        words=("--only", "stack-variable-ignored"),
        begins="export ",
        variables={"TRANSFORMERS_CACHE": "/data/models"},
    ),
    "an instruction set that is capped": Context(
        words=("--only", "isa-capped"), begins="", variables={"ONEDNN_MAX_CPU_ISA": "SSE41"}
    ),
    "a thread limit": Context(
        words=("--only", "threads-limit"), begins="", variables={"OMP_THREAD_LIMIT": "1"}
    ),
    "a debugging variable": Context(
        words=("--only", "debug-left-on"), begins="unset", variables={"TORCH_LOGS": "all"}
    ),
    "a recording, sound": Context(
        words=("--root", "sound"), begins="cputune tune --dry-run --root sound"
    ),
    "a recording, busy": Context(words=("--root", "busy"), begins=EXPLAIN + "machine-busy"),
    "a recording with a quota": Context(words=("--root", "quota"), begins=EXPLAIN),
    "a recording of nothing": Context(words=("--root", "empty"), begins=EXPLAIN + "facts-missing"),
    "a file with a fix": Context(
        words=("--check-file", "train.sh"),
        begins="cputune doctor --check-file train.sh --print-fix | patch -p0",
    ),
    "a file with a fix, in a folder": Context(
        words=("--check-file", "jobs/train.sh"),
        begins="cputune doctor --check-file jobs/train.sh --print-fix | patch -p0",
    ),
    "a file with a fix, above": Context(
        words=("--check-file", "jobs/../train.sh"),
        begins="cputune doctor --check-file jobs/../train.sh --print-fix | patch jobs/",
    ),
    "a file with a fix, by its whole path": Context(
        words=("--check-file", "{here}/train.sh"),
        begins="cputune doctor --check-file {here}/train.sh --print-fix | patch {here}/train.sh",
    ),
    "a file with a fix, with a blank": Context(
        words=("--check-file", "my train.sh"),
        begins="cputune doctor --check-file 'my train.sh' --print-fix | patch 'my train.sh'",
    ),
    "a file by another stack": Context(
        words=("--check-file", "train.sh", "--stack", "torch=2.13.0,transformers=5.23.0"),
        begins="cputune doctor --check-file train.sh --stack torch=2.13.0,transformers=5.23.0 "
        "--print-fix | patch",
    ),
    "a file without a fault": Context(words=("--check-file", "sound.sh"), begins="nothing"),
    "a configuration": Context(words=("--check-file", "accelerate.yaml"), begins="cputune doctor"),
    "versions that fit": Context(
        words=("--stack", "torch=2.5.1,transformers=4.40"),
        begins="pip install torch==2.5.1 transformers==4.40",
    ),
    "versions with another python": Context(
        words=("--stack", "torch=2.13.0,numpy=2.1,python=3.12"),
        begins="pip install torch==2.13.0 numpy==2.1",
    ),
    "versions of no wheel on PyPI": Context(
        words=("--stack", "torch=2.6.0,oneccl=2.6.0"), begins="pip install torch==2.6.0 oneccl_"
    ),
    "versions that do not fit": Context(
        words=("--stack", "torch=2.6.0,ipex=2.8.0"), begins="pip install intel_extension"
    ),
    "the installed versions": Context(words=("--stack", "installed"), begins="cputune tune"),
    "an error text with a check": Context(
        words=("--symptom", "Your setup doesn't support bf16/gpu"),
        begins="Add --use_cpu",
    ),
    "an error text whose fix is in the script": Context(
        words=("--symptom", "IndexError: index out of range in self"), begins="Call model.resize"
    ),
    "an error text whose fix has parentheses": Context(
        words=("--symptom", "Found input variables with inconsistent numbers of samples: [9, 8]"),
        begins="Apply one mask to both (mask = labels != -100; predictions[mask], labels[mask])",
    ),
    "an error text with a command": Context(
        words=("--symptom", "OSError: AF_UNIX path too long"),
        begins="export TMPDIR=/tmp",
    ),
    "a launch": Context(
        words=("--only", "advice", "--", sys.executable, "train.py", "--lr", "3e-5"),
        begins=f"cputune tune -- {sys.executable} train.py --lr 3e-5",
    ),
    "a launch of nothing": Context(
        words=("--only", "launch-script", "--", sys.executable, "gone.py"), begins=EXPLAIN
    ),
    "hosts": Context(
        words=(
            "--hosts",
            "node1,node2",
            "--ssh",
            "sh ssh.sh",
            "--host-timeout",
            "60",
            "--only",
            "advice",
        ),
        begins="cputune tune --hosts node1,node2 --ssh 'sh ssh.sh' --host-timeout 60",
    ),
    "a host that is gone": Context(
        words=("--hosts", "node1,gone", "--ssh", "sh ssh.sh", "--host-timeout", "60"),
        begins="cputune doctor --explain ho",
    ),
    "hosts with a fault of their own": Context(
        words=(
            "--hosts",
            "node1,node2",
            "--ssh",
            "sh ssh.sh",
            "--host-timeout",
            "60",
            "--only",
            "threads-malformed",
        ),
        begins=EXPLAIN + "threads-malformed",
        variables={"OMP_NUM_THREADS": "many"},
    ),
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with launch files and recordings, and the programs that commands name."""
    here = tmp_path_factory.mktemp("sandbox")
    (here / "jobs").mkdir()
    for name in ("train.sh", "jobs/train.sh", "my train.sh"):
        (here / name).write_text(REFUSED)
    (here / "sound.sh").write_text(SOUND)
    (here / "accelerate.yaml").write_text(YAML)
    (here / "train.py").write_text(SCRIPT)
    (here / "ssh.sh").write_text(SSH)
    (here / "pip_reads.py").write_text(PIP)
    (here / "empty").mkdir()
    load = {"/proc/loadavg": "9.00 9.00 9.00 3/500 4242\n"}
    machine(here / "sound", sockets=2, cores=8)
    machine(here / "busy", sockets=2, cores=8, files=load)
    machine(here / "quota", sockets=2, cores=8, cgroup=Cgroup(path="/docker/a", quota=2.0))
    programs = here / "programs"
    programs.mkdir()
    for name, starts in (
        ("cputune", "-m cputune"),
        ("pip", str(here / "pip_reads.py")),
        ("python", ""),
    ):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {starts} "$@"\n')
        program.chmod(0o755)
    return here


OF_SEVERAL_HOSTS = ("hosts", "hosts with a fault of their own")
"""Gloo is started on both: half a minute each."""
USUAL = [name for name in CONTEXTS if name not in OF_SEVERAL_HOSTS]


@pytest.mark.parametrize("name", [*USUAL, *like_others(OF_SEVERAL_HOSTS)])
def test_what_to_do_now_runs_as_it_is_printed(
    cputune: Run, sandbox: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    context = CONTEXTS[name]
    here = str(sandbox)
    with monkeypatch.context() as patched:
        patched.chdir(sandbox)
        for variable, value in context.variables.items():
            patched.setenv(variable, value)
        ended = cputune("doctor", *(word.format(here=here) for word in context.words))
    line = next(line for line in ended.out.splitlines() if line.startswith("Do now: "))
    command = line.removeprefix("Do now: ")
    assert command.startswith(context.begins.format(here=here))
    if command.startswith("nothing: ") or "--symptom" in context.words:
        return  # what to change in the script is a sentence
    files = {path: path.read_text() for path in sandbox.rglob("*.sh")}
    environment = {
        **os.environ,
        **{key: value for key, value in context.variables.items() if key != "LD_PRELOAD"},
        "PATH": f"{sandbox / 'programs'}:{os.environ['PATH']}",
        "CPUTUNE_TUNE_DRY_RUN": "1",
    }
    done = typed(command, cputune, monkeypatch, cwd=sandbox, env=environment)
    changed = [path for path, text in files.items() if path.read_text() != text]
    for path, text in files.items():
        path.write_text(text)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    if "patch" in command and "train.sh" in command:
        (patched_file,) = changed
        assert patched_file.name.endswith("train.sh")
    else:
        assert not changed


def test_there_are_many_contexts() -> None:
    assert len(CONTEXTS) >= 25
