"""The scripts of this folder, how each is started, and what it is known to do."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Case:
    """One script.

    ``words`` are its arguments, ``{place}`` stands for the folder that ``local.py`` writes.
    ``launcher`` is typed in front of it. ``precision`` and ``batch`` are those that it has by
    itself; ``flags``: a plan reaches it by flags; ``ranks``: it cannot be given others.
    """

    name: str
    words: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    batch: int = 8
    precision: str = "fp32"
    flags: bool = False
    ranks: int | None = None
    needs: str = "torch"

    def command(self, place: Path) -> list[str]:
        """What stands after ``--``."""
        words = (word.format(place=place) for word in self.words)
        return [*self.launcher, str(HERE / self.name), *words]

    def skip_without_packages(self) -> None:
        if find_spec(self.needs) is None:
            pytest.skip(f"{self.needs} is not installed: pip install --group scripts")


STEPS = "40"
"""Of loops that count their steps themselves: a trial cannot make them go on."""

TRAINER = ("--output_dir", "trained", "--max_steps", "6", "--report_to", "none", "--use_cpu")
TRL = (
    *("--dataset_name", "{place}/data/train.jsonl", "--model_name_or_path", "{place}/llama"),
    *("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2"),
    *("--max_length", "32", *TRAINER),
)
NO_TRAINER = (
    *("--model_name_or_path", "{place}/bert", "--train_file", "{place}/data/train.jsonl"),
    *("--per_device_train_batch_size", "8", "--max_train_steps", STEPS),
)

CASES = (
    Case(
        name="parsed.py",
        words=("--place", "{place}", "--do_train", "--bf16", *TRAINER),
        precision="bf16",
        flags=True,
    ),
    Case(name="args_in_code.py", words=("{place}", "6"), batch=16),
    Case(name="no_trainer.py", words=NO_TRAINER),
    Case(name="sentence_pairs.py", words=("{place}", "6"), batch=16, needs="sentence_transformers"),
    Case(name="trl_sft.py", words=TRL, precision="bf16", flags=True, needs="trl"),
    Case(name="trl_dpo.py", words=TRL, precision="bf16", flags=True, needs="trl"),
    Case(name="peft_lora.py", words=("{place}", "--max_steps", "6"), needs="peft"),
    Case(
        name="plain_loop.py",
        words=("--accumulate", "2", "--bf16", "--epochs", "2"),
        batch=16,
        precision="bf16",
        ranks=1,
    ),
    Case(name="plain_ddp.py", launcher=("torchrun", "--nproc-per-node", "2"), batch=16, ranks=2),
)
