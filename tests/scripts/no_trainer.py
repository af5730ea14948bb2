"""The way of run_glue_no_trainer.py: a loop of its own over accelerate, evaluation, saving."""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    get_scheduler,
)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--max_train_steps", type=int, required=True)
    parser.add_argument("--output_dir", default="trained")
    return parser.parse_args()


def main():
    args = parse_args()
    accelerator = Accelerator()
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForSequenceClassification.from_pretrained(args.model_name_or_path)
    rows = [json.loads(line) for line in Path(args.train_file).read_text().splitlines()]
    data = [
        {**tokenizer(row["sentence1"], row["sentence2"]), "labels": row["label"]} for row in rows
    ]
    collate = DataCollatorWithPadding(tokenizer)
    batch_size = args.per_device_train_batch_size
    train_loader = DataLoader(data[:192], shuffle=True, collate_fn=collate, batch_size=batch_size)
    eval_loader = DataLoader(data[192:], collate_fn=collate, batch_size=8)

    decayed = [p for n, p in model.named_parameters() if "bias" not in n]
    others = [p for n, p in model.named_parameters() if "bias" in n]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=5e-5,
    )
    steps = args.max_train_steps
    scheduler = get_scheduler(
        "linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=steps
    )
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )

    done = 0
    while done < steps:
        model.train()
        for batch in train_loader:
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            done += 1
            if done >= steps:
                break
        model.eval()
        right = seen = 0
        for batch in eval_loader:
            with torch.no_grad():
                guess = model(**batch).logits.argmax(dim=-1)
            guess, label = accelerator.gather_for_metrics((guess, batch["labels"]))
            right, seen = right + int((guess == label).sum()), seen + len(label)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(args.output_dir)
        print(f"{done} steps, accuracy {right / seen:.2f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
