"""Flags of training scripts, judged by the versions that will read them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cputune.doctor.files.context import Context
from cputune.doctor.finding import Check, Finding, Severity
from cputune.doctor.reading.launches import Launch
from cputune.stack.vocabulary import State, Word, vocabulary

TRAINER = ("--output_dir", "--do_train", "--per_device_train_batch_size", "--bf16", "--fp16")
"""Flags by which a script is known that parses TrainingArguments."""

FLAG_REFUSED = Check(
    code="file-flag-refused",
    severity=Severity.ERROR,
    title="A flag that the installed versions refuse",
    remedy="Write what the evidence says instead.",
    source="huggingface/transformers#40784, huggingface/transformers#42852, "
    "huggingface/accelerate#3883",
    story="""Symptom: "unrecognized arguments", "invalid choice", or an error about a flag.

Cause: guides show --use_ipex (transformers 4.20 to 4.56), --no_cuda (to 4.57),
--xpu_backend (to 4.31) and --ddp_backend ccl (transformers to 5.0 with accelerate to
1.12). ``cputune doctor --stack installed`` lists what these versions take.""",
)
FLAG_IGNORED = Check(
    code="file-flag-ignored",
    severity=Severity.WARNING,
    title="A flag that does nothing here",
    remedy="Take it out, or write what the evidence says instead.",
    source="huggingface/transformers#40784",
    story="""Symptom: the flag is given, and neither speed nor memory changes.

Cause: --fp16 trains in fp32 on a CPU, without a message. --use_ipex is taken by
transformers 4.53 to 4.56 and left to an accelerate that may not act on it.""",
)


def judge_flags(launch: Launch, context: Context) -> Iterator[Finding]:
    """Flags of TrainingArguments that these versions refuse or ignore."""
    for word in vocabulary(context.versions):
        flag, _, choice = word.spelling.partition(" ")
        if not flag.startswith("--") or word.state is State.ACCEPTED:
            continue
        given = launch.argument(flag)
        if given is None or (choice and given != choice):
            continue
        parser = _parser(flag, launch, context)
        if parser == "its own":
            continue
        off = not choice and not launch.switched_on(flag)
        if word.state is State.IGNORED and not off:
            yield FLAG_IGNORED.finding(context.at(launch.line, _said(word)))
        elif word.state is State.REFUSED and not (off and word.spelling == "--use_ipex"):
            unsure = "" if parser == "trainer" else ", where the script parses TrainingArguments"
            yield FLAG_REFUSED.finding(
                context.at(launch.line, _said(word) + unsure),
                severity=Severity.WARNING if unsure else None,
                source=word.source,
            )


def _parser(flag: str, launch: Launch, context: Context) -> str:
    """Who reads a flag: ``trainer`` (TrainingArguments), ``its own`` or ``unknown``."""
    text = context.text_of(launch.script)
    if text is not None:
        if re.search(rf"add_argument\(\s*['\"]{flag}['\"]", text):
            return "its own"
        return "trainer" if re.search("TrainingArguments|HfArgumentParser", text) else "its own"
    example = re.fullmatch(r"run_\w+\.py", launch.script.rpartition("/")[2])
    named = any(launch.argument(name) is not None for name in TRAINER)
    return "trainer" if example or named else "unknown"


def _said(word: Word) -> str:
    notes = "; ".join(note for note in (word.why, _instead(word)) if note)
    return f"{word.spelling} is {word.state.value} by {word.reader}" + (notes and f": {notes}")


def _instead(word: Word) -> str | None:
    return f"write {word.instead}" if word.instead else None


CHECKS: tuple[Check, ...] = (FLAG_REFUSED, FLAG_IGNORED)
