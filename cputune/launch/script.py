"""What a training script is: by its text, if that can be read, else by its name and arguments.

Also the batch that arguments of TrainingArguments ask for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cputune.launch.located_words import number_of, value_of
from cputune.launch.script_parser import Reader, parses_trainers, reader_in

TRAINER = ("--output_dir", "--do_train", "--per_device_train_batch_size", "--bf16", "--fp16")
"""Arguments that show that a script parses TrainingArguments."""
BATCH_ARGUMENTS = (
    "--per_device_train_batch_size",
    "--per_gpu_train_batch_size",
    "--gradient_accumulation_steps",
)
"""Arguments that decide how many samples an optimizer step takes."""
_BY_ACCELERATE = re.compile(
    r"\baccelerate\b|\bAccelerator\b|\btransformers\b|\btrl\b|sentence_transformers"
)
_OWN_RANKS = re.compile(r"init_process_group\(|DistributedDataParallel|\blightning\b|\bhorovod\b")
_OF_A_LIBRARY = re.compile(r"transformers|accelerate|lightning|\btrl\b|Trainer|Accelerator")
_PARSED = re.compile(r"HfArgumentParser\(\s*[\[(]?[\w\s.,]*TrainingArguments")
_ASKS_FOR_CPU = re.compile(r"\b(?:use_cpu|no_cuda|cpu)['\"]?\s*[=:]\s*True|ACCELERATE_USE_CPU")
_MADE = re.compile(r"\bTrainingArguments\(\s*\w")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The text of a training script; "" if it is known to be empty."""

    text: str

    def reader_of(self, flag: str) -> Reader:
        """What reads this flag: TrainingArguments, its own parser, or what is not known."""
        reader = reader_in(self.text, flag)
        if reader is not None:
            return reader
        if re.search("TrainingArguments|HfArgumentParser", self.text):
            return "trainer"
        return "its own"

    @property
    def parses_arguments(self) -> bool:
        """Whether it takes TrainingArguments from its command line, and makes none itself."""
        parses = parses_trainers(self.text)
        if parses is not None:
            return parses
        return _PARSED.search(self.text) is not None and _MADE.search(self.text) is None

    @property
    def has_own_loop(self) -> bool:
        """Whether it uses torch, and no library that trains."""
        return "torch" in self.text and _OF_A_LIBRARY.search(self.text) is None

    @property
    def starts_own_ranks(self) -> bool:
        """Whether it starts its process group itself, without accelerate."""
        by_accelerate = _BY_ACCELERATE.search(self.text) is not None
        return not by_accelerate and _OWN_RANKS.search(self.text) is not None

    @property
    def asks_for_cpu(self) -> bool:
        """Whether it asks Trainer or accelerate for the CPU: ``use_cpu=True``, ``cpu=True``."""
        return _ASKS_FOR_CPU.search(self.text) is not None

    def takes_precision(self, precision: str, arguments: Sequence[str], framework: str) -> bool:
        """Whether it trains in this precision if only ACCELERATE_MIXED_PRECISION is set.

        An Accelerator reads the variable if the script names no precision. A Trainer trains in fp32
        unless it is given another one; those of TRL train in bf16.
        """
        all_text = " ".join([self.text, *arguments])
        if "mixed_precision" in all_text:
            return False
        if framework == "accelerate":
            return True
        if precision == "fp32":
            return re.search(r"bf16|fp16|\btrl\b", all_text) is None
        return "Accelerator(" in self.text and "Trainer" not in self.text


def is_example(name: str) -> bool:
    """Whether a script has the name of an example of transformers that uses Trainer."""
    return re.fullmatch(r"run_\w+\.py", name.rpartition("/")[2]) is not None


def are_trainers(arguments: Sequence[str]) -> bool:
    """Whether these are arguments of TrainingArguments."""
    return any(value_of(arguments, name) is not None for name in TRAINER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch of some arguments.

    Attributes:
        per_rank: samples of a rank in one batch; None if they do not say it, or with
            ``--auto_find_batch_size``.
        accumulation: batches of an optimizer step; None if they do not say it.
    """

    per_rank: int | None
    accumulation: int | None

    @property
    def per_step(self) -> int | None:
        """Samples of a rank in an optimizer step."""
        if self.per_rank is None:
            return None
        return self.per_rank * (self.accumulation or 1)


def batch_of(arguments: Sequence[str]) -> Batch:
    """The values of ``--per_device_train_batch_size`` and ``--gradient_accumulation_steps``."""
    per_rank = number_of(value_of(arguments, "--per_device_train_batch_size")) or None
    typed = value_of(arguments, "--gradient_accumulation_steps")
    accumulation = number_of(typed) or None
    unreadable = typed is not None and accumulation is None
    if unreadable or value_of(arguments, "--auto_find_batch_size") is not None:
        per_rank = None
    return Batch(per_rank=per_rank, accumulation=accumulation)
