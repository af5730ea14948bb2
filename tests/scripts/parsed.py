"""The way of run_glue.py: HfArgumentParser makes TrainingArguments of the command line."""

import json
from dataclasses import dataclass
from pathlib import Path

from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)


@dataclass
class DataArguments:
    place: str = "."


def main():
    parser = HfArgumentParser((DataArguments, TrainingArguments))
    data_arguments, arguments = parser.parse_args_into_dataclasses()
    place = Path(data_arguments.place)
    tokenizer = AutoTokenizer.from_pretrained(place / "bert")
    rows = [json.loads(line) for line in (place / "data/train.jsonl").read_text().splitlines()]
    data = [{**tokenizer(row["text"]), "labels": row["label"]} for row in rows]
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(place / "bert"),
        args=arguments,
        train_dataset=data[:192],
        eval_dataset=data[192:],
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    if arguments.do_train:
        trainer.train()
        trainer.save_model()
    if arguments.do_eval:
        trainer.save_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    main()
