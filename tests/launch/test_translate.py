"""A launch in the words of another launcher: nothing of it is lost unseen."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from rows import every_row

from cputune.launch.launch import launch_of
from cputune.launch.launchers import BY_NAME, LAUNCHERS
from cputune.launch.translate import Translated, by_mpirun, by_python, by_torchrun


def torchrun(line: str) -> Translated:
    launch = launch_of(line.split())
    assert launch is not None
    return by_torchrun(launch)


OF_ACCELERATE = ("USE_CPU=true", "DYNAMO_BACKEND=INDUCTOR", "DEBUG_MODE=true")


@every_row(
    ("options", "renamed", "variables"),
    [
        (
            "accelerate launch --num_processes 2 --main_process_port 29511 --max_restarts 3",
            ["--nproc_per_node", "--master_port", "--max_restarts"],
            [],
        ),
        (
            "accelerate launch --cpu --num_processes 2 --dynamo_backend inductor --debug",
            [None, "--nproc_per_node", None, None],
            [f"ACCELERATE_{word}" for word in OF_ACCELERATE],
        ),
        ("deepspeed --num_gpus 2 --master_port 29511", ["--nproc_per_node", "--master_port"], []),
        (
            "python -m torch.backends.xeon.run_cpu --ninstances 2 --ncores-per-instance 4",
            ["--nproc_per_node", None],
            ["OMP_NUM_THREADS=4"],
        ),
    ],
)
def test_each_option_becomes_an_option_or_a_variable(
    options: str, renamed: list[str | None], variables: list[str]
) -> None:
    said = torchrun(f"{options} train.py --x 1")
    assert [name for _, name in said.options] == renamed
    assert said.variables == variables
    assert (said.left_out, said.refused) == ([], [])


def test_what_is_not_needed_is_left_out_with_its_reason() -> None:
    said = torchrun("deepspeed --num_gpus 2 --bind_cores_to_rank --no_local_rank train.py")
    left_out = [text.partition(":")[0] for text in said.left_out]
    assert left_out == ["--bind_cores_to_rank", "--no_local_rank"]
    assert said.refused == []


@every_row(
    "line",
    [
        "ipexrun --throughput_mode train.py",
        "ipexrun --nnodes 2 --hostfile hosts train.py",
        "deepspeed --hostfile hosts --num_nodes 2 --num_gpus 2 train.py",
        "accelerate launch --num_processes 2 --use_fsdp train.py",
        "deepspeed --num_gpus 2 --autotuning run train.py",
        "deepspeed --num_gpus 2 --of_another_version 3 train.py",
    ],
)
def test_what_has_no_counterpart_refuses_the_translation(line: str) -> None:
    assert torchrun(line).refused != []


def test_one_process_needs_no_port_and_says_so() -> None:
    launch = launch_of(["deepspeed", "--num_gpus", "1", "--master_port", "29511", "train.py"])
    assert launch is not None
    said = by_python(launch)
    assert (said.words, len(said.left_out), said.refused) == (("python",), 1, [])


def test_ranks_that_are_a_variable_are_not_multiplied() -> None:
    launch = launch_of(
        ["ipexrun", "--nnodes", "2", "--hostfile", "h", "--nprocs_per_node", "$N", "t.py"]
    )
    assert launch is not None
    assert by_mpirun(launch).refused != []


def test_an_option_takes_up_to_two_words() -> None:
    for launcher in LAUNCHERS:
        assert {option.takes for option in launcher.options} <= {0, 1, 2}, launcher.name


PARSERS = """
import argparse, json
from accelerate.commands.launch import launch_command_parser
from torch.backends.xeon import run_cpu
from torch.distributed.run import get_args_parser

xeon = argparse.ArgumentParser()
run_cpu.create_args(xeon)
takes = {}
for name, parser in (
    ("torchrun", get_args_parser()), ("accelerate", launch_command_parser()), ("run_cpu", xeon)
):
    for action in parser._actions:
        for option in action.option_strings:
            takes[f"{name} {option}"] = 1 if action.nargs is None else action.nargs
print(json.dumps(takes))
"""


@pytest.mark.torch
def test_an_option_takes_as_many_words_as_its_own_launcher_says() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARSERS], stdout=subprocess.PIPE, text=True, check=True
    )
    compared = 0
    for named, takes in json.loads(done.stdout).items():
        launcher, option = named.split()
        known = BY_NAME[launcher].option(option)
        if known is not None:
            compared += 1
            assert known.takes == takes, named
    assert compared > 100
