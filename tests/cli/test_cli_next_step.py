"""Every "Do now" of the doctor runs as it is printed: collected in many contexts, typed in bash."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

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


class Context(NamedTuple):
    """What is typed after ``doctor``, and what the command that it names begins with."""

    typed: str
    begins: str
    variables: Mapping[str, str] = MappingProxyType({})


EXPLAIN = "cputune doctor --explain "
CONTEXTS = {
    "nothing serious": Context("--only advice", "cputune tune"),
    "a recipe": Context(
        "--only advice --recipe bert-base-squad", "cputune tune --recipe bert-base-squad"
    ),
    "a python": Context(
        f"--only advice --python {sys.executable}", f"cputune tune --python {sys.executable}"
    ),
    "a thread count that is none": Context(
        "--only threads-malformed", "export OMP_NUM_THREADS=", {"OMP_NUM_THREADS": "many"}
    ),
    "what a launch left": Context(
        "",
        "unset ",
        {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"},
    ),
    "a preload that is gone": Context(
        "--only preload-dead", "unset LD_PRELOAD", {"LD_PRELOAD": "/gone/libx.so"}
    ),
    "a variable of another version": Context(
        "--only stack-variable-ignored", "export ", {"TRANSFORMERS_CACHE": "/data/models"}
    ),
    "an instruction set that is capped": Context(
        "--only isa-capped", "", {"ONEDNN_MAX_CPU_ISA": "SSE41"}
    ),
    "a thread limit": Context("--only threads-limit", "", {"OMP_THREAD_LIMIT": "1"}),
    "a debugging variable": Context("--only debug-left-on", "unset", {"TORCH_LOGS": "all"}),
    "a recording, sound": Context("--root sound", "cputune tune --dry-run --root sound"),
    "a recording, busy": Context("--root busy", EXPLAIN + "machine-busy"),
    "a recording with a quota": Context("--root quota", EXPLAIN),
    "a recording of nothing": Context("--root empty", EXPLAIN + "facts-missing"),
    "a file with a fix": Context(
        "--check-file train.sh", "cputune doctor --check-file train.sh --print-fix | patch -p0"
    ),
    "a file with a fix, in a folder": Context(
        "--check-file jobs/train.sh",
        "cputune doctor --check-file jobs/train.sh --print-fix | patch -p0",
    ),
    "a file with a fix, above": Context(
        "--check-file jobs/../train.sh",
        "cputune doctor --check-file jobs/../train.sh --print-fix | patch jobs/",
    ),
    "a file with a fix, by its whole path": Context(
        "--check-file {here}/train.sh",
        "cputune doctor --check-file {here}/train.sh --print-fix | patch {here}/train.sh",
    ),
    "a file with a fix, with a blank": Context(
        "--check-file 'my train.sh'",
        "cputune doctor --check-file 'my train.sh' --print-fix | patch 'my train.sh'",
    ),
    "a file by another stack": Context(
        "--check-file train.sh --stack torch=2.13.0,transformers=5.23.0",
        "cputune doctor --check-file train.sh --stack torch=2.13.0,transformers=5.23.0 "
        "--print-fix | patch",
    ),
    "a file without a fault": Context("--check-file sound.sh", "nothing"),
    "a configuration": Context("--check-file accelerate.yaml", "cputune doctor"),
    "versions that fit": Context(
        "--stack torch=2.5.1,transformers=4.40", "pip install torch==2.5.1 transformers==4.40"
    ),
    "versions with another python": Context(
        "--stack torch=2.13.0,numpy=2.1,python=3.12", "pip install torch==2.13.0 numpy==2.1"
    ),
    "versions of no wheel on PyPI": Context(
        "--stack torch=2.6.0,oneccl=2.6.0", "pip install torch==2.6.0 oneccl_"
    ),
    "versions that do not fit": Context(
        "--stack torch=2.6.0,ipex=2.8.0", "pip install intel_extension"
    ),
    "the installed versions": Context("--stack installed", "cputune tune"),
    "an error text with a check": Context(
        '--symptom "Your setup doesn\'t support bf16/gpu"', "Add --use_cpu"
    ),
    "an error text whose fix is in the script": Context(
        "--symptom 'IndexError: index out of range in self'", "Call model.resize"
    ),
    "an error text whose fix has parentheses": Context(
        "--symptom 'Found input variables with inconsistent numbers of samples: [9, 8]'",
        "Apply one mask to both (mask = labels != -100; predictions[mask], labels[mask])",
    ),
    "an error text with a command": Context(
        "--symptom 'OSError: AF_UNIX path too long'", "export TMPDIR=/tmp"
    ),
    "a launch": Context(
        f"--only advice -- {sys.executable} train.py --lr 3e-5",
        f"cputune tune -- {sys.executable} train.py --lr 3e-5",
    ),
    "a launch of nothing": Context(f"--only launch-script -- {sys.executable} gone.py", EXPLAIN),
    "hosts": Context(
        "--hosts node1,node2 --ssh 'sh ssh.sh' --host-timeout 60 --only advice",
        "cputune tune --hosts node1,node2 --ssh 'sh ssh.sh' --host-timeout 60",
    ),
    "a host that is gone": Context(
        "--hosts node1,gone --ssh 'sh ssh.sh' --host-timeout 60", "cputune doctor --explain ho"
    ),
    "hosts with a fault of their own": Context(
        "--hosts node1,node2 --ssh 'sh ssh.sh' --host-timeout 60 --only threads-malformed",
        EXPLAIN + "threads-malformed",
        {"OMP_NUM_THREADS": "many"},
    ),
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with launch files and recordings, and the programs that commands name."""
    here = tmp_path_factory.mktemp("sandbox")
    for folder in ("jobs", "empty"):
        (here / folder).mkdir()
    files = dict.fromkeys(("train.sh", "jobs/train.sh", "my train.sh"), REFUSED)
    files |= {"sound.sh": SOUND, "accelerate.yaml": YAML, "train.py": SCRIPT}
    files |= {"ssh.sh": SSH, "pip_reads.py": PIP}
    for name, text in files.items():
        (here / name).write_text(text)
    load = {"/proc/loadavg": "9.00 9.00 9.00 3/500 4242\n"}
    machine(here / "sound", sockets=2, cores=8)
    machine(here / "busy", sockets=2, cores=8, files=load)
    machine(here / "quota", sockets=2, cores=8, cgroup=Cgroup(path="/docker/a", quota=2.0))
    programs = here / "programs"
    programs.mkdir()
    starts_of = {"cputune": "-m cputune", "pip": here / "pip_reads.py", "python": ""}
    for name, starts in starts_of.items():
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
        ended = cputune("doctor", *shlex.split(context.typed.format(here=here)))
    line = next(line for line in ended.out.splitlines() if line.startswith("Do now: "))
    command = line.removeprefix("Do now: ")
    assert command.startswith(context.begins.format(here=here))
    if command.startswith("nothing: ") or "--symptom" in context.typed:
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
