"""sentence-transformers' CrossEncoder."""

import sys

import datasets
from sentence_transformers.cross_encoder import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments as Arguments,
)

rows = [{"one": f"w{n % 60}", "two": f"w{n % 7} w1", "label": float(n % 2)} for n in range(256)]
model = CrossEncoder(f"{sys.argv[1]}/encoder", num_labels=1, device="cpu")
CrossEncoderTrainer(
    model=model,
    args=Arguments(output_dir="trained", max_steps=20, use_cpu=True, report_to="none"),
    train_dataset=datasets.Dataset.from_list(rows),
).train()
