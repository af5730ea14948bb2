"""TrainingArguments that are built in code, fp16 among them; nothing is read from outside."""

import json
import sys
from pathlib import Path

from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

place = Path(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(place / "bert")
rows = [json.loads(line) for line in (place / "data/train.jsonl").read_text().splitlines()]
data = [{**tokenizer(row["text"]), "labels": row["label"]} for row in rows]
arguments = TrainingArguments(
    output_dir="trained",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    max_steps=int(sys.argv[2]) if len(sys.argv) > 2 else 30,
    fp16=True,
    use_cpu=True,
    report_to="none",
    logging_steps=5,
)
trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained(place / "bert"),
    args=arguments,
    train_dataset=data,
    data_collator=DataCollatorWithPadding(tokenizer),
)
trainer.train()
trainer.save_model()
