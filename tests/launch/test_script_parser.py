"""Which command line a script parses: the dataclasses that its parser gets decide."""

from __future__ import annotations

import pytest
from rows import every_row

from cputune.launch.script import Script

OWN = """\
@dataclass
class ScriptArguments:
    warmup_ratio: float = 0.1
    output_dir: str = "out"
"""
MADE = "TrainingArguments(output_dir=args.output_dir, warmup_ratio=args.warmup_ratio)\n"


@every_row(
    ("text", "flag", "reader"),
    [
        # Its own dataclass has all options; TrainingArguments are made from its values.
        (OWN + "HfArgumentParser(ScriptArguments)\n" + MADE, "--warmup_ratio", "its own"),
        (OWN + "HfArgumentParser(ScriptArguments)\n" + MADE, "--no_cuda", "its own"),
        (OWN + "HfArgumentParser((ScriptArguments, Other))\n", "--warmup_ratio", "its own"),
        # Beside TrainingArguments, a subclass and a tuple in a variable.
        ("HfArgumentParser((A, TrainingArguments))\n", "--warmup_ratio", "trainer"),
        ("HfArgumentParser(Seq2SeqTrainingArguments)\n", "--no_cuda", "trainer"),
        ("parts = (A, t.TrainingArguments)\nHfArgumentParser(parts)\n", "--no_cuda", "trainer"),
        ("HfArgumentParser(dataclass_types=[TrainingArguments])\n", "--no_cuda", "trainer"),
        (
            "class Mine(TrainingArguments):\n    lr: float = 1\nHfArgumentParser(Mine)\n",
            "--warmup_ratio",
            "trainer",
        ),
        (
            "class Mine(TrainingArguments):\n    no_cuda: bool = True\nHfArgumentParser(Mine)\n",
            "--no_cuda",
            "its own",
        ),
        ("from trl import SFTConfig\nTrlParser((A, SFTConfig))\n", "--no_cuda", "trainer"),
        # Dataclasses of another file are not known.
        ("from arguments import Mine\nHfArgumentParser(Mine)\n", "--no_cuda", "unknown"),
        ("parser = HfArgumentParser(classes())\n", "--no_cuda", "unknown"),
        # Parsers of other libraries.
        ("import argparse\n" + MADE, "--warmup_ratio", "its own"),
        (
            "HfArgumentParser(TrainingArguments)\np.add_argument('-w', '--warmup_ratio')\n",
            "--warmup_ratio",
            "its own",
        ),
        ("import fire\nfire.Fire(main)\n" + MADE, "--warmup_ratio", "its own"),
        ("@click.option('--bf16/--fp32')\ndef main(): ...\n" + MADE, "--bf16", "its own"),
        ("flags.DEFINE_float('warmup_ratio', 0.1, '')\n" + MADE, "--warmup_ratio", "its own"),
        ("print(1)\n", "--no_cuda", "its own"),
        # A script that Python warns of; a warning is an error here.
        ("a = '\\d'\nHfArgumentParser(TrainingArguments)\n", "--no_cuda", "trainer"),
        # What is no Python is searched for the names.
        ("print 1; HfArgumentParser(TrainingArguments)\n", "--no_cuda", "trainer"),
        ("print 1\n", "--no_cuda", "its own"),
    ],
)
def test_the_dataclasses_of_a_parser_decide_who_reads_a_flag(text, flag, reader):
    assert Script(text=text).reader_of(flag) == reader


@pytest.mark.parametrize(
    ("text", "parses"),
    [
        ("HfArgumentParser((A, TrainingArguments))\n", True),
        (OWN + "HfArgumentParser(ScriptArguments)\n" + MADE, False),
        ("class TrainingArguments:\n    lr: int = 1\nHfArgumentParser(TrainingArguments)\n", False),
    ],
)
def test_only_a_parser_of_training_arguments_takes_the_flags_of_a_plan(text, parses):
    assert Script(text=text).parses_arguments is parses
