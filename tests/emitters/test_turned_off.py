"""What the user typed and the plan turns off is named, with the reason, in every format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from emit_machines import IPEX_ERA, TODAY, machine, script_workload

from cputune import Cluster, EmittedFile, HostFacts, UsageError, Workload, emit
from cputune.emitters import FORMATS, parse_hosts
from cputune.emitters.turned_off import turned_off
from cputune.plans.delivery.delivery import Delivery, delivery_of
from cputune.plans.layout import mild_plan

ERA = {**TODAY, "transformers": "4.56.2", "torch": "2.8.0"}


def without_bf16() -> HostFacts:
    """A processor without bf16, IPEX and oneCCL."""
    facts = machine("AMD EPYC", sockets=1, cores=8)
    return replace(facts, cpu=replace(facts.cpu, isa=("avx2",)))


def written(format: str, words: tuple[str, ...], **more: Any) -> EmittedFile:
    """The launch of a script with these words on that processor."""
    job = replace(script_workload(*words), batch_per_rank=12)
    return emit(None, format, facts=without_bf16(), workload=job, **more)[0]


pytestmark = pytest.mark.usefixtures("workdir")
WORDS = ("--use_ipex", "--no_cuda", "--ddp_backend", "ccl", "--bf16", "--output_dir", "out")
SHORT = (
    "your --bf16, --ddp_backend ccl and --use_ipex are off here: the plan trains in fp32, over "
    "gloo and without IPEX"
)


@pytest.mark.parametrize("format", [*FORMATS, "command"])
def test_the_words_of_the_guide_are_named_in_every_format(format: str) -> None:
    cluster = Cluster(image="registry.example.com/bert:1", interface="eth0")
    more = {"hosts": parse_hosts("a,b"), "ranks_per_node": 2, "cluster": cluster}
    main = written(format, WORDS, versions=ERA, **more)
    assert SHORT in main.notes
    (reason,) = (note for note in main.notes if note.startswith("that is off here because"))
    assert "this CPU has none of amx_bf16" in reason
    assert "oneccl_bindings_for_pytorch is not installed" in reason
    assert "intel_extension_for_pytorch is not installed" in reason


@pytest.mark.parametrize(
    ("launch", "off"),
    [
        ("accelerate launch --cpu --mixed_precision bf16 train.py", "mixed_precision bf16 is"),
        ("accelerate launch --ipex train.py", "ipex is"),
        ("accelerate launch --mixed_precision no train.py", None),
        ("torchrun --nproc-per-node 2 train.py", None),
    ],
)
def test_what_a_launcher_was_given_is_named_too(launch: str, off: str | None) -> None:
    workload = Workload.of(launch).observed(framework="accelerate")
    way = Delivery(variables={}, flags=("--use_ipex", "False"))
    named = [note.partition(" off here: ")[0] for note in turned_off(workload, way, without_bf16())]
    assert named[:1] == ([] if off is None else [f"your --{off}"])


@pytest.mark.parametrize("words", [("--ddp_backend", "ccl"), ("--ddp_backend=ccl",)])
@pytest.mark.parametrize(("versions", "stays"), [(IPEX_ERA, True), (TODAY, False), ({}, False)])
def test_a_value_that_the_parser_refuses_does_not_stay_before_that_of_the_plan(
    words: tuple[str, ...], versions: dict[str, str], stays: bool
) -> None:
    """argparse refuses each value, also one that is replaced by a later one."""
    main = written("torchrun", (*words, "--do_train"), versions=versions, ranks_per_node=2)
    text = " ".join(main.text.partition("train=(")[2].split())
    assert (" ".join(words) in text) == stays, text
    assert "--do_train" in text
    assert "--ddp_backend gloo" in text
    assert "your --ddp_backend ccl is off here: the plan trains over gloo" in main.notes


TRAINED = ("--do_train", "--output_dir", "out", "--per_device_train_batch_size", "8")
GUIDES = ("--use_ipex", "--no_cuda", "--ddp_backend", "ccl", "--bf16", *TRAINED)
REFUSED = "transformers 5.23.0 refuses it"


def notes_of(words: tuple[str, ...], format: str = "torchrun", ranks: int = 1) -> tuple[str, str]:
    """The notes of a launch of these words with today's versions, and all words that it starts."""
    cluster = Cluster(image="registry.example.com/bert:1")
    more = {"hosts": parse_hosts("a"), "ranks_per_node": ranks, "cluster": cluster}
    main = written(format, words, versions=TODAY, **more)
    lines = (line for line in main.text.splitlines() if not line.startswith("#"))
    words = " ".join(lines).replace(" - ", " ").replace(chr(34), "")
    return "\n".join(main.notes), " ".join(words.split())


@pytest.mark.parametrize("format", [*FORMATS, "command"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_words_that_the_versions_refuse_are_left_out_and_named(format: str, ranks: int) -> None:
    notes, text = notes_of(GUIDES, format, ranks)
    assert "your --bf16" in notes
    assert f"your --use_ipex is off here: {REFUSED}; torch itself runs AMX and bf16" in notes
    assert f"your --no_cuda is off here: {REFUSED}; --use_cpu says the same" in notes
    if ranks == 1:
        assert "your --ddp_backend ccl is off here: one process needs no backend" in notes
        assert "--ddp_backend" not in text
    assert "--ddp_backend ccl" not in text
    assert "--no_cuda" not in text
    assert "--use_ipex" not in text
    assert "--do_train" in text
    assert "None" not in notes


@pytest.mark.parametrize(
    ("words", "off"),
    [
        (("--tf32",), "your --tf32 is off here: it needs a GPU"),
        (("--tf32", "True"), "your --tf32 is off here: it needs a GPU"),
        (("--tf32=True",), "your --tf32 is off here: it needs a GPU"),
        (
            ("--overwrite-output-dir",),
            f"your --overwrite_output_dir is off here: {REFUSED}; "
            "a folder that exists is written into",
        ),
        (("--use_mps_device",), f"your --use_mps_device is off here: {REFUSED}"),
        (
            ("--half_precision_backend", "auto"),
            f"your --half_precision_backend auto is off here: {REFUSED}; --bf16 says it alone",
        ),
        (("--ddp_backend", "gloo"), "your --ddp_backend gloo is off here: one process needs no"),
    ],
)
def test_what_changes_no_training_is_left_out(words: tuple[str, ...], off: str) -> None:
    notes, text = notes_of((*words, *TRAINED))
    assert off in notes
    assert words[0] not in text
    assert "--do_train" in text


@pytest.mark.parametrize(
    "words",
    [
        ("--evaluation_strategy", "epoch"),
        ("--group_by_length",),
        ("--warmup_ratio", "0.1"),
        ("--per_gpu_train_batch_size", "4"),
        ("--deepspeed", "zero.json"),
    ],
)
def test_what_would_be_another_training_stays_an_error(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as raised:
        notes_of((*words, *TRAINED))
    assert words[0] in str(raised.value)


@pytest.mark.parametrize(
    ("words", "off"),
    [
        (("--bf16",), "your --bf16 is off here: the plan trains in fp32"),
        (("--bf16", "True"), "your --bf16 is off here: the plan trains in fp32"),
        (("--fp16", "--bf16"), "your --bf16 and --fp16 are off here: the plan trains in fp32"),
        (("--use_ipex",), "your --use_ipex is off here: the plan trains without IPEX"),
        (("--bf16", "False"), None),
        (("--no_cuda",), None),  # --use_cpu says the same
        (("--torch_compile",), None),  # it stays
        (("--per_device_train_batch_size", "8"), None),
    ],
)
def test_each_flag_that_is_turned_off_is_named(words: tuple[str, ...], off: str | None) -> None:
    workload = script_workload(*words)
    way = delivery_of(workload, mild_plan(without_bf16()), ERA)
    assert turned_off(workload, way, without_bf16())[:1] == ([] if off is None else [off])
