"""The way of accelerate's complete_nlp_example.py: precision as a word, loaders from a function."""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer

CONFIG = {"lr": 2e-5, "batch_size": 16, "seed": 42}


def loaders(place, batch_size):
    tokenizer = AutoTokenizer.from_pretrained(place / "bert")
    rows = [json.loads(line) for line in (place / "data/train.jsonl").read_text().splitlines()]

    def collate(examples):
        texts = [(row["sentence1"], row["sentence2"]) for row in examples]
        batch = tokenizer(texts, padding="longest", return_tensors="pt")
        batch["labels"] = torch.tensor([row["label"] for row in examples])
        return batch

    train = DataLoader(rows[:192], shuffle=True, collate_fn=collate, batch_size=batch_size)
    return train, DataLoader(rows[192:], collate_fn=collate, batch_size=32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("--mixed_precision", default=None, choices=["no", "fp16", "bf16", "fp8"])
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--output_dir", default=".")
    args = parser.parse_args()
    accelerator = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision)
    torch.manual_seed(CONFIG["seed"])
    train_loader, eval_loader = loaders(args.place, CONFIG["batch_size"])
    model = AutoModelForSequenceClassification.from_pretrained(args.place / "bert")
    model = model.to(accelerator.device)
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=CONFIG["lr"])
    model, optimizer, train_loader, eval_loader = accelerator.prepare(
        model, optimizer, train_loader, eval_loader
    )
    done = 0
    for _ in range(2):
        model.train()
        for batch in train_loader:
            batch.to(accelerator.device)
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == args.steps:
                break
        model.eval()
        for batch in eval_loader:
            with torch.no_grad():
                accelerator.gather_for_metrics(model(**batch).logits)
        if done == args.steps:
            break
    accelerator.save_state(Path(args.output_dir) / "state")
    accelerator.end_training()


if __name__ == "__main__":
    main()
