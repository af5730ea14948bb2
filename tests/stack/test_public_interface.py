"""The public interface of the libraries, as the wheels have it: held against what was read by
hand."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

from packaging.version import Version
from rows import every_row

from cputune.stack import interface
from cputune.stack.tables import load, minor

MOST_BYTES = 1_500_000


def test_the_file_is_small_and_holds_every_release_of_the_stack_table() -> None:
    with resources.as_file(resources.files("cputune.stack") / interface.FILE) as path:
        assert path.stat().st_size < MOST_BYTES
    for package in ("transformers", "accelerate"):
        assert interface.releases(package) == load().library(package).read  # type: ignore[arg-type]
    for package in ("datasets", "peft", "trl", "huggingface_hub"):
        assert len(interface.releases(package)) > 15


def test_the_newest_release_is_the_last_that_was_read() -> None:
    assert interface.newest("accelerate") == max(interface.releases("accelerate"))
    assert interface.newest("numpy") is None


def test_it_is_read_only_when_a_question_needs_it() -> None:
    code = (
        "import sys, zipfile; zipfile.ZipFile = None; import cputune.cli.doctor, "
        "cputune.ranks.failure;"
        "from cputune.doctor.symptoms import explain; print(explain('Bus error').symptom.name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "bus-error\n", done.stderr


@every_row("row", load().transformers.arguments, ids=lambda row: row.name)
def test_rows_by_hand_say_what_the_wheels_say(row: object) -> None:
    found = interface.argument("transformers", "TrainingArguments", row.name)  # type: ignore[attr-defined]
    assert found is not None
    first, last = row.first, row.last  # type: ignore[attr-defined]
    oldest = minor(interface.releases("transformers")[0])
    # A row may begin later, with the release in which the argument works on a CPU.
    assert max(first or oldest, oldest) >= minor(found.first)
    assert first is not None or found.always
    assert (None if found.still else minor(found.last)) == last


@every_row(
    ("package", "called", "name", "words"),
    [
        ("transformers", "TrainingArguments", "eval_strategy", "from 4.41 on"),
        ("transformers", "TrainingArguments", "use_ipex", "4.20 to 4.56"),
        ("transformers", "Seq2SeqTrainingArguments", "use_cpu", "from 4.32 on"),
        ("transformers", "Trainer", "processing_class", "from 4.46 on"),
        ("transformers", "Trainer.__init__", "tokenizer", "to 4.57"),
        ("accelerate", "Accelerator.unwrap_model", "keep_torch_compile", "from 1.3 on"),
        ("accelerate", "Accelerator", "dispatch_batches", "to 0.34"),
        ("trl", "SFTTrainer", "max_seq_length", "0.4 to 0.12"),
    ],
)
def test_arguments(package: str, called: str, name: str, words: str) -> None:
    found = interface.argument(package, called, name)
    assert found is not None
    assert found.range_text() == words


def test_arguments_of_one_release_are_all_that_it_takes() -> None:
    at = interface.arguments("transformers", "TrainingArguments", Version("4.40.2"))
    assert {"evaluation_strategy", "no_cuda", "bf16"} <= at
    assert "eval_strategy" not in at
    assert not interface.argument("transformers", "TrainingArguments", "no_such_argument")


def test_symbols_modules_and_options() -> None:
    found = interface.symbol("transformers", "transformers", "AdamW")
    assert found is not None
    assert (found.always, found.still) == (True, False)
    assert interface.symbol("transformers", "transformers", "Trainer").still  # type: ignore[union-attr]
    assert not interface.module("transformers", "transformers.deepspeed").still  # type: ignore[union-attr]
    assert "transformers.pytorch_utils" in interface.homes(
        "transformers", "apply_chunking_to_forward"
    )
    launch = interface.option("accelerate", "--mpirun_ccl")["accelerate.commands.launch"]
    assert launch.range_text() == "0.28 to 1.12"
    assert "processing_class" in interface.renamed("transformers", "tokenizer")


def test_torch_has_rows_by_hand_of_what_came_or_went() -> None:
    gone = interface.module("torch", "torch._six")
    assert gone is not None
    assert (gone.range_text(), gone.at(Version("2.0.1"))) == ("to 1.13", False)
    assert interface.symbol("torch", "torch", "compile").range_text() == "from 2.0 on"  # type: ignore[union-attr]
    assert interface.symbol("torch", "torch", "einsum") is not None


def test_a_message_tells_which_releases_raise_it() -> None:
    said = (
        "FP16 Mixed precision training with AMP or APEX (`--fp16`) and FP16 half precision "
        "evaluation "
        "(`--fp16_full_eval`) can only be used on CUDA devices."
    )
    found = interface.messages(said)
    assert {(one.package, one.module) for one in found} == {
        ("transformers", "transformers.training_args")
    }
    assert not any(one.presence.still for one in found)
