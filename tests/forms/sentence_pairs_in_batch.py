"""sentence-transformers with a loss over all pairs of a batch."""

import sys

import datasets
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments as Arguments,
    losses,
)

rows = [{"anchor": f"w{n % 60} w{n % 7}", "positive": f"w{n % 60} w1 w2"} for n in range(256)]
model = SentenceTransformer(f"{sys.argv[1]}/bert", device="cpu")
SentenceTransformerTrainer(
    model=model,
    args=Arguments(output_dir="trained", max_steps=20, use_cpu=True, report_to="none"),
    train_dataset=datasets.Dataset.from_list(rows),
    loss=losses.MultipleNegativesRankingLoss(model),
).train()
