"""A small classifier on the Trainer: rank 0 prints loss and gradient norm of each update.

Without dropout, so that the numbers of several ranks are those of one process.
"""

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Tell(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in (logs or {}):
            world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
            # In one piece: several ranks write to one pipe.
            print(f"update {world} {logs['loss']} {float(logs['grad_norm'])}\n", end="", flush=True)


def samples():
    generator = torch.Generator().manual_seed(1)
    for _ in range(128):
        words = torch.randint(0, 500, (32,), generator=generator)
        yield {
            "input_ids": words,
            "attention_mask": torch.ones(32, dtype=torch.long),
            "labels": int(words[0] % 2),
        }


(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
set_seed(args.seed)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=500,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
)
Trainer(model=model, args=args, train_dataset=list(samples()), callbacks=[Tell()]).train()
