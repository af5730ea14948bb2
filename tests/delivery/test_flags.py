import sys
from importlib import metadata, util

import pytest
from in_process import ran
from rows import every_row

from cputune import Plan, Workload
from cputune.plans.delivery.delivery import delivery_of

TODAY = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}
IPEX_ERA = {"torch": "2.8.0+cpu", "transformers": "4.56.2", "accelerate": "1.7.0"}


def script(*arguments, batch=12, parses=True, **more):
    return Workload(
        name="run_qa.py",
        argv=("run_qa.py", *arguments),
        framework="trainer",
        parses_arguments=parses,
        global_batch_size=batch,
        **more,
    )


def training_flags(workload, plan, versions):
    """What is appended to the arguments of a script that takes flags."""
    return delivery_of(workload, plan, versions).flags


def plan(ranks=1, **fields):
    cpus = tuple((rank,) for rank in range(ranks))
    return Plan(processes_per_node=ranks, threads_per_process=1, cpus=cpus, **fields)


def test_a_plan_without_ipex_switches_the_users_use_ipex_off():
    assert "--use_ipex" in training_flags(script("--use-ipex"), plan(), IPEX_ERA)
    assert "--use_ipex" not in training_flags(script("--use-ipex"), plan(), TODAY)


@every_row(
    ("arguments", "ranks", "expected"),
    [
        ((), 3, ("4",)),
        (("--gradient_accumulation_steps", "0"), 1, ("12",)),
    ],
)
def test_the_global_batch_stays_what_it_is(arguments, ranks, expected):
    flags = training_flags(script(*arguments), plan(ranks), TODAY)
    start = flags.index("--per_device_train_batch_size") + 1
    assert flags[start:] == expected


def test_accumulation_that_a_configuration_file_sets_is_kept():
    flags = training_flags(script(accumulation=4), plan(1), TODAY)
    assert flags[-2:] == ("--per_device_train_batch_size", "3")
    flags = training_flags(script(accumulation=4), plan(2), TODAY)
    assert flags[-3:] == ("3", "--gradient_accumulation_steps", "2")


READ_BACK = """
import json, sys, transformers
parser = transformers.HfArgumentParser(transformers.TrainingArguments)
(read,) = parser.parse_args_into_dataclasses(["--output_dir", "out", "--bf16", *sys.argv[1:]])
print(json.dumps([read.use_cpu, read.bf16, read.per_device_train_batch_size]))
"""


@pytest.mark.torch
@pytest.mark.matrix
def test_the_installed_transformers_reads_the_flags_back():
    if not (util.find_spec("torch") and util.find_spec("transformers")):
        pytest.skip("torch and transformers are not installed")
    installed = {"transformers": metadata.version("transformers")}
    flags = training_flags(script("--bf16"), plan(precision="fp32"), installed)
    # Importing the Trainer sets variables of its own, hence a child.
    argv = [sys.executable, "-c", READ_BACK, *flags]
    child = ran(argv)
    assert child.stdout.strip() == "[true, false, 12]", child.stderr


def test_a_plan_of_fp32_switches_the_users_own_precision_off():
    flags = training_flags(script("--bf16", "--fp16=True"), plan(), TODAY)
    assert flags[1:5] == ("--bf16", "False", "--fp16", "False")


def test_the_flags_of_todays_stack():
    flags = training_flags(script(), plan(2, precision="bf16"), TODAY)
    assert flags == (
        *("--use_cpu", "--bf16", "True", "--ddp_backend", "gloo"),
        *("--per_device_train_batch_size", "6"),
    )


def test_a_recipe_takes_bare_flags_and_has_all_of_it_off():
    recipe = Workload.from_recipe("bert-mini")
    assert training_flags(recipe, plan(precision="bf16"), TODAY)[1:2] == ("--bf16",)
    assert "--bf16" not in training_flags(recipe, plan(), TODAY)
