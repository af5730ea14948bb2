"""The way of sentence-transformers' training_stsbenchmark.py: arguments built in code."""

import sys
from pathlib import Path

from datasets import load_dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
)

place = Path(sys.argv[1])
word = models.Transformer(str(place / "bert"), max_seq_length=32)
model = SentenceTransformer(modules=[word, models.Pooling(word.get_word_embedding_dimension())])
data = load_dataset("json", data_files=str(place / "data/train.jsonl"), split="train")
data = data.select_columns(["sentence1", "sentence2", "score"])
arguments = SentenceTransformerTrainingArguments(
    output_dir="trained",
    num_train_epochs=1,
    max_steps=int(sys.argv[2]) if len(sys.argv) > 2 else -1,
    per_device_train_batch_size=16,
    warmup_steps=2,
    bf16=False,
    report_to="none",
)
trainer = SentenceTransformerTrainer(
    model=model,
    args=arguments,
    train_dataset=data,
    loss=losses.CosineSimilarityLoss(model=model),
)
trainer.train()
model.save_pretrained("trained/final")
