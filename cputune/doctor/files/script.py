"""What a launch trains with: Trainer, accelerate, or a training loop of the script.

The script is read if it is on this machine; else only its name and arguments are known.
"""

from __future__ import annotations

import re

from cputune.doctor.files.context import Context
from cputune.launch.launch import Launch

TRAINER = ("--output_dir", "--do_train", "--per_device_train_batch_size", "--bf16", "--fp16")
"""Flags that show that a script parses TrainingArguments."""
_BY_ACCELERATE = re.compile(
    r"\baccelerate\b|\bAccelerator\b|\btransformers\b|\btrl\b|sentence_transformers"
)
_OWN_RANKS = re.compile(r"init_process_group\(|DistributedDataParallel|\blightning\b|\bhorovod\b")


def text_of(launch: Launch, context: Context) -> str | None:
    """The text of the script; None for a module, or if it cannot be read."""
    if not launch.script or launch.module:
        return None
    return context.text_of(launch.script)


def reader_of(flag: str, launch: Launch, context: Context) -> str:
    """What reads a flag: ``trainer`` (TrainingArguments), ``its own`` or ``unknown``."""
    if context.parser is not None:
        return context.parser
    text = context.text_of(launch.script)
    if text is not None:
        own = re.search(rf"add_argument\(\s*['\"]{flag}['\"]", text)
        parses = re.search("TrainingArguments|HfArgumentParser", text)
        return "trainer" if parses and not own else "its own"
    return "trainer" if is_example(launch) or trains(launch) else "unknown"


def is_example(launch: Launch) -> bool:
    """Whether the script has the name of an example of transformers that uses Trainer."""
    return re.fullmatch(r"run_\w+\.py", launch.script.rpartition("/")[2]) is not None


def trains(launch: Launch) -> bool:
    """Whether its arguments are those of Trainer."""
    return any(launch.argument(name) is not None for name in TRAINER)


def is_own(launch: Launch, context: Context) -> bool:
    """Whether the script starts its process group itself, without accelerate."""
    text = text_of(launch, context)
    if text is None or _BY_ACCELERATE.search(text):
        return False
    return _OWN_RANKS.search(text) is not None
