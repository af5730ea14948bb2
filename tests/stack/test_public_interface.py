"""The public interface of the libraries, as the wheels have it: held against what was read by
hand."""

from __future__ import annotations

import subprocess
import sys

from packaging.version import Version
from rows import every_row

from cputune.stack import interface


def test_it_is_read_only_when_a_question_needs_it() -> None:
    code = (
        "import sys, zipfile; zipfile.ZipFile = None; import cputune.cli.doctor, "
        "cputune.ranks.failure;"
        "from cputune.doctor.symptoms import explain; print(explain('Bus error').symptom.name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "bus-error\n", done.stderr


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
    assert found.range_text() == words


def test_torch_has_rows_by_hand_of_what_came_or_went() -> None:
    gone = interface.module("torch", "torch._six")
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
