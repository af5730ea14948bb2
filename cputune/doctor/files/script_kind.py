"""What a launch trains with: Trainer, accelerate, or a training loop of the script.

The script is read if it is on this machine; else only its name and arguments are known.
"""

from __future__ import annotations

import re

from cputune.doctor.files.context import Context
from cputune.launch.launch import Launch
from cputune.launch.script import Script, are_trainers, is_example


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
    if text is None:
        if is_example(launch.script):
            return "trainer"
        return "unknown"
    return Script(text=text).reader_of(flag)


def by_library(launch: Launch, context: Context) -> bool:
    """Whether Trainer or accelerate trains, as far as the launch or the script shows it."""
    if (launch.inner or launch).launcher == "accelerate" or are_trainers(launch.arguments):
        return True
    return reader_of("--ddp_backend", launch, context) == "trainer"


def may_be_trainers(flag: str, launch: Launch, context: Context) -> bool:
    """Whether TrainingArguments may read a flag: the script is not seen to read it itself."""
    return reader_of(flag, launch, context) != "its own"


def is_own(launch: Launch, context: Context) -> bool:
    """Whether the script starts its process group itself, without accelerate."""
    text = text_of(launch, context)
    return text is not None and Script(text=text).starts_own_ranks


def is_by_mpi(launch: Launch, context: Context) -> bool:
    """Whether the ranks of the script talk by MPI or Horovod, which need no address."""
    text = text_of(launch, context)
    if text is None:
        file = "" if context.places is None else context.places.text
        return "horovod" in file.lower()
    if re.search(r"torch\.distributed|\baccelerate\b|\bTrainer\b|lightning", text):
        return False
    return re.search(r"(?m)^\s*(?:import|from)\s+(?:mpi4py|horovod)\b", text) is not None


def asks_for_cpu(launch: Launch, context: Context) -> bool:
    """Whether the script itself asks Trainer or accelerate for the CPU."""
    text = text_of(launch, context)
    return text is not None and Script(text=text).asks_for_cpu
