import sys
from importlib import metadata, util

import pytest
from golden_texts import Golden
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


def test_the_flags_of_todays_stack():
    flags = training_flags(script(), plan(2, precision="bf16"), TODAY)
    assert flags == (
        *("--use_cpu", "--bf16", "True", "--ddp_backend", "gloo"),
        *("--per_device_train_batch_size", "6"),
    )


def test_the_flags_of_the_ipex_era():
    flags = training_flags(script(), plan(2, precision="bf16", ipex=True, backend="ccl"), IPEX_ERA)
    assert flags[:7] == (
        *("--use_cpu", "--bf16", "True", "--ddp_backend", "ccl", "--use_ipex", "True"),
    )


@every_row(
    ("transformers", "expected"),
    [
        ("4.31.0", "--no_cuda"),
        ("4.32.0", "--use_cpu"),
        ("5.23.0", "--use_cpu"),
        (None, "--use_cpu"),
        ("no version", "--use_cpu"),
    ],
)
def test_the_cpu_is_asked_for_in_the_spelling_of_the_version(transformers, expected):
    versions = {"transformers": transformers} if transformers else {}
    assert training_flags(script(), plan(), versions)[0] == expected


@every_row(
    ("transformers", "expected"),
    [("4.19.4", False), ("4.20.0", True), ("4.56.2", True), ("4.57.1", False), ("5.0.0", False)],
)
def test_use_ipex_only_if_trainer_takes_it(transformers, expected):
    flags = training_flags(script(), plan(ipex=True), {"transformers": transformers})
    assert ("--use_ipex" in flags) is expected


@pytest.mark.parametrize(
    ("transformers", "accelerate", "backend", "expected"),
    [
        # Each release is in tests/stack/test_spelling.py.
        ("4.24.0", "0.13.2", "gloo", ("--xpu_backend", "gloo")),
        ("5.0.0", "1.12.0", "ccl", ("--ddp_backend", "ccl")),
        ("5.0.0", "1.13.0", "ccl", ()),
    ],
)
def test_the_backend_is_named_if_it_exists(transformers, accelerate, backend, expected):
    versions = {"transformers": transformers, "accelerate": accelerate}
    flags = training_flags(script(batch=None), plan(2, backend=backend), versions)
    named = [n for n, flag in enumerate(flags) if flag.endswith("_backend")]
    assert tuple(word for n in named for word in flags[n : n + 2]) == expected


def test_no_backend_in_a_run_of_one_process_where_it_would_be_a_value_error():
    assert "--ddp_backend" not in training_flags(script(), plan(1), TODAY)


def test_a_plan_of_fp32_switches_the_users_own_precision_off():
    flags = training_flags(script("--bf16", "--fp16=True"), plan(), TODAY)
    assert flags[1:5] == ("--bf16", "False", "--fp16", "False")


def test_a_plan_without_ipex_switches_the_users_use_ipex_off():
    assert "--use_ipex" in training_flags(script("--use-ipex"), plan(), IPEX_ERA)
    assert "--use_ipex" not in training_flags(script("--use-ipex"), plan(), TODAY)


@every_row(
    ("arguments", "ranks", "expected"),
    [
        ((), 3, ("4",)),
        (("--gradient_accumulation_steps", "2"), 2, ("3",)),
        (("--gradient-accumulation-steps=6",), 1, ("2",)),
        (("--gradient_accumulation_steps", "4"), 2, ("3", "--gradient_accumulation_steps", "2")),
        (("--gradient_accumulation_steps", "0"), 1, ("12",)),
        (("--gradient_accumulation_steps", "two"), 1, ("12",)),
    ],
)
def test_the_global_batch_stays_what_it_is(arguments, ranks, expected):
    flags = training_flags(script(*arguments), plan(ranks), TODAY)
    start = flags.index("--per_device_train_batch_size") + 1
    assert flags[start:] == expected


def test_a_batch_per_rank_is_given_as_it_is():
    job = script("--gradient_accumulation_steps", "4", batch_per_rank=12)
    assert training_flags(job, plan(5), TODAY)[-2:] == ("--per_device_train_batch_size", "12")


def test_a_batch_that_cannot_be_divided_is_refused(golden: Golden):
    with pytest.raises(ValueError) as raised:
        training_flags(script(), plan(5), TODAY)
    golden(raised.value)


def test_accumulation_that_a_configuration_file_sets_is_kept():
    flags = training_flags(script(accumulation=4), plan(1), TODAY)
    assert flags[-2:] == ("--per_device_train_batch_size", "3")
    flags = training_flags(script(accumulation=4), plan(2), TODAY)
    assert flags[-3:] == ("3", "--gradient_accumulation_steps", "2")


def test_a_recipe_takes_bare_flags_and_has_all_of_it_off():
    recipe = Workload.from_recipe("bert-mini")
    assert training_flags(recipe, plan(precision="bf16"), TODAY)[1:2] == ("--bf16",)
    assert "--bf16" not in training_flags(recipe, plan(), TODAY)


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
