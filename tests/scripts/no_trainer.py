"""The way of run_glue_no_trainer.py: a loop of its own over accelerate, evaluation, saving."""

import argparse
import json
import math
import os
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
    parser.add_argument("--per_device_eval_batch_size", type=int, default=8)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--num_train_epochs", type=int, default=1)
    parser.add_argument("--max_train_steps", type=int, default=None)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--output_dir", default=None)
    return parser.parse_args()


def main():
    args = parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    if accelerator.is_main_process and args.output_dir is not None:
        os.makedirs(args.output_dir, exist_ok=True)
    accelerator.wait_for_everyone()

    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForSequenceClassification.from_pretrained(args.model_name_or_path)
    rows = [json.loads(line) for line in Path(args.train_file).read_text().splitlines()]
    data = [
        {**tokenizer(row["sentence1"], row["sentence2"]), "labels": row["label"]} for row in rows
    ]
    collate = DataCollatorWithPadding(tokenizer)
    train_loader = DataLoader(
        data[:192],
        shuffle=True,
        collate_fn=collate,
        batch_size=args.per_device_train_batch_size,
    )
    eval_loader = DataLoader(
        data[192:], collate_fn=collate, batch_size=args.per_device_eval_batch_size
    )

    decayed = [p for n, p in model.named_parameters() if "bias" not in n]
    others = [p for n, p in model.named_parameters() if "bias" in n]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=args.learning_rate,
    )
    steps = args.max_train_steps or args.num_train_epochs * math.ceil(
        len(train_loader) / args.gradient_accumulation_steps
    )
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
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
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
    if accelerator.is_main_process and args.output_dir is not None:
        accelerator.unwrap_model(model).save_pretrained(args.output_dir)
        (Path(args.output_dir) / "all_results.json").write_text(
            json.dumps({"accuracy": right / seen, "steps": done})
        )
    accelerator.end_training()


if __name__ == "__main__":
    main()
