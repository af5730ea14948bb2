"""The run_*.py examples' way: HfArgumentParser, evaluation, saving, a report, early stopping."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from tiny import Data, model
from transformers import (
    EarlyStoppingCallback,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
)


@dataclass
class DataArguments:
    samples: int = field(default=64)


data_arguments, arguments = HfArgumentParser(
    (DataArguments, TrainingArguments)
).parse_args_into_dataclasses()
assert "--output_dir" in sys.argv, "arguments pass through untouched"
trainer = Trainer(
    model=model(),
    args=arguments,
    train_dataset=Data(data_arguments.samples),
    eval_dataset=Data(16),
    data_collator=default_data_collator,
    callbacks=[EarlyStoppingCallback()],
)
print("before training:", trainer.evaluate()["eval_loss"])
trainer.train()
trainer.save_model()
Path("trained.txt").write_text("a trial never comes here")
