"""Completion as shells ask for it: what the script calls, and that each shell can read it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli.test_cli_help import commands
from click.testing import CliRunner
from in_process import ran

from cputune.cli import cli

CPUTUNE = Path(sys.executable).with_name("cputune")


def completed(shell: str, words: str, position: int) -> list[str]:
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(position), "_CPUTUNE_COMPLETE": shell}
    if shell.startswith("fish"):
        variables["COMP_CWORD"] = words.split()[-1]
    done = CliRunner().invoke(cli, env=variables, prog_name="cputune")
    assert done.exit_code == 0
    return done.stdout.split()


def test_the_command_itself_answers_a_shell() -> None:
    asked = {"COMP_WORDS": "cputune rec", "COMP_CWORD": "1", "_CPUTUNE_COMPLETE": "bash_complete"}
    assert ran([CPUTUNE], env={**os.environ, **asked}, check=True).stdout == "plain,recipes\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_can_be_sourced(shell: str, tmp_path: Path) -> None:
    asked = {"_CPUTUNE_COMPLETE": f"{shell}_source"}
    source = CliRunner().invoke(cli, env=asked, prog_name="cputune").stdout
    assert "_CPUTUNE_COMPLETE" in source
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "completion"
    script.write_text(source)
    subprocess.run([program, "-n", str(script)], check=True)


def test_bash_completes_an_option_and_a_format() -> None:
    assert "plain,--budget" in completed("bash_complete", "cputune tune --bud", 2)
    assert "plain,torchrun" in completed("bash_complete", "cputune emit --format tor", 3)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("cputune tune --recipe gpt2-c", "plain,gpt2-clm"),
        ("cputune tune --knobs rank", "plain,ranks"),
        ("cputune tune --knobs ranks,thre", "plain,ranks,threads"),
        ("cputune tune --fix precision=b", "plain,precision=bf16"),
        ("cputune tune --fix thre", "plain,threads="),
        ("cputune tune --keep dis", "plain,distribution"),
        ("cputune tune --hosts sl", "plain,slurm"),
        ("cputune doctor --explain quota-th", "plain,quota-threads"),
        ("cputune doctor --only err", "plain,error"),
        ("cputune doctor --ignore one-core,machine-b", "plain,one-core,machine-busy"),
        ("cputune doctor --check-file tra", "file,tra"),
        ("cputune doctor --root rec", "dir,rec"),
        ("cputune emit --mpi intel", "plain,intelmpi"),
        ("cputune emit --like tra", "file,tra"),
        ("cputune recipes bert-m", "plain,bert-mini"),
        ("cputune run --plan base", "plain,baseline"),
        ("cputune show 2026", "plain,20261121-193000"),
        ("cputune show la", "plain,last"),
        ("cputune report my", "file,my"),
        ("cputune compare las", "plain,last"),
        ("cputune prove --recipe gpt2-l", "plain,gpt2-lora"),
        ("cputune verify lau", "file,lau"),
    ],
)
def test_every_value_that_has_a_list_is_completed(
    words: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = tmp_path / "cputune" / "history"
    history.mkdir(parents=True)
    (history / "20261121-193000.json").write_text("{}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert found in completed("bash_complete", words, len(words.split()) - 1)


def test_no_option_that_names_something_is_left_without_completion() -> None:
    """Options with a list of values, or of files; what is free text is named here."""
    free = {
        *("secret", "seed", "budget", "study_name", "price_per_hour", "ssh", "host_timeout"),
        *("batch_per_rank", "global_batch_size", "fail_if_slower", "steps", "timeout"),
        *("accelerate_version", "transformers_version", "nodes", "job_name", "namespace", "image"),
        *("pvc", "memory", "node_selector", "image_pull_secret", "secret_env", "user_id"),
        *("ranks_per_node", "reserve_cpus", "max_restarts", "runtime", "time", "partition"),
        *("account", "interface", "stack", "config"),
    }
    bare = []
    for name, command in commands():
        for parameter in command.params:
            completes = parameter._custom_shell_complete is not None
            listed = isinstance(parameter.type, click.Choice)
            flag = isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count)
            if not (completes or listed or flag or parameter.name in free):
                bare.append(f"{name} {parameter.name}")
    assert bare == []
