"""Train a recipe with the Hugging Face Trainer.

    python train.py RECIPE --output_dir out [any TrainingArguments flag]

RECIPE is the file recipe.json, or its text. It says which model and data, and the learning
rate, which a --learning_rate of yours replaces. Its hub names are used where the hub (or its local
cache) can be reached. Where not, the model is built from its configuration with random
weights and fed random tokens of the same shape: the speed is the same, and the script
prints which of them it trains on.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
    training_args,
)

MODELS = {
    "question-answering": AutoModelForQuestionAnswering,
    "sequence-classification": AutoModelForSequenceClassification,
    "masked-lm": AutoModelForMaskedLM,
    "causal-lm": AutoModelForCausalLM,
}
IGNORED = -100  # the label that the loss passes over
MASKED_SHARE = 0.15  # as in BERT's pre-training


@dataclass
class RecipeArguments:
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Use only so many examples of the data set."}
    )
    synthetic: bool = field(
        default=False, metadata={"help": "Random weights and tokens, without asking the hub."}
    )


class SyntheticTokens(Dataset):  # type: ignore[misc]
    """Random tokens with the columns, shapes and types of a real data set of this task."""

    def __init__(self, recipe: dict[str, Any], vocab_size: int, num_labels: int, samples: int):
        self.task, self.length = recipe["task"], recipe["sequence_length"]
        self.vocab_size, self.num_labels, self.samples = vocab_size, num_labels, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.samples:
            raise IndexError(index)
        dice = torch.Generator().manual_seed(index)
        ids = torch.randint(self.vocab_size, (self.length,), generator=dice)
        sample = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.task == "question-answering":
            first, last = torch.randint(self.length, (2,), generator=dice).sort().values
            sample |= {"start_positions": first, "end_positions": last}
        elif self.task == "sequence-classification":
            sample["labels"] = torch.randint(self.num_labels, (), generator=dice)
        elif self.task == "masked-lm":
            kept = torch.rand(self.length, generator=dice) < MASKED_SHARE
            sample["labels"] = torch.where(kept, ids, torch.full_like(ids, IGNORED))
        else:
            sample["labels"] = ids.clone()
        return sample


def build_model(recipe: dict[str, Any], synthetic: bool) -> tuple[Any, str]:
    """The pretrained model where it can be had, else one with random weights."""
    model_class = MODELS[recipe["task"]]
    if recipe.get("hub_id") and not synthetic:
        try:
            return model_class.from_pretrained(recipe["hub_id"]), recipe["hub_id"]
        except Exception as error:
            reason = str(error).strip().splitlines()[0][:120]
            print(f"model: {recipe['hub_id']} cannot be had ({reason})")
    config = AutoConfig.for_model(**recipe["model"])
    return model_class.from_config(config), f"{config.model_type} with random weights"


def build_data(recipe: dict[str, Any], config: Any, arguments: RecipeArguments) -> tuple[Any, str]:
    """The real data set, tokenized, where it can be had, else random tokens of its shape."""
    if recipe.get("dataset") and recipe.get("hub_id") and not arguments.synthetic:
        try:
            return load_tokens(recipe, arguments.max_train_samples), recipe["dataset"]
        except Exception as error:
            reason = str(error).strip().splitlines()[0][:120]
            print(f"data: {recipe['dataset']} cannot be had ({reason})")
    samples = arguments.max_train_samples or 64 * recipe["global_batch_size"]
    labels = getattr(config, "num_labels", 2)
    return SyntheticTokens(recipe, config.vocab_size, labels, samples), "synthetic tokens"


def load_tokens(recipe: dict[str, Any], max_samples: int | None) -> Any:
    """Load and tokenize the data set (``name`` or ``name/configuration``) with `datasets`."""
    from datasets import load_dataset

    split = "train" if max_samples is None else f"train[:{max_samples}]"
    data = load_dataset(*recipe["dataset"].split("/", 1), split=split)
    tokenizer = AutoTokenizer.from_pretrained(recipe["hub_id"])
    task = recipe["task"]
    if task == "question-answering":
        return data.map(
            lambda rows: answer_features(rows, tokenizer, recipe),
            batched=True,
            remove_columns=data.column_names,
        )
    text = next(name for name in ("text", "sentence", "content") if name in data.column_names)

    def features(rows: Any) -> dict[str, Any]:
        tokens = tokenizer(
            rows[text],
            truncation=True,
            padding="max_length",
            max_length=recipe["sequence_length"],
        )
        if task == "sequence-classification":
            return {**tokens, "labels": rows["label"]}
        return {**tokens, "labels": [language_labels(ids, task) for ids in tokens["input_ids"]]}

    if task == "causal-lm" and tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return data.map(features, batched=True, remove_columns=data.column_names)


def language_labels(ids: list[int], task: str) -> list[int]:
    """Every token for a causal model, a random share of them for a masked one."""
    if task == "causal-lm":
        return list(ids)
    return [token if random.random() < MASKED_SHARE else IGNORED for token in ids]


def answer_features(rows: Any, tokenizer: Any, recipe: dict[str, Any]) -> dict[str, Any]:
    """Overlapping windows of a context, each with the tokens between which its answer lies."""
    stride = recipe.get("doc_stride") or recipe["sequence_length"] // 3
    tokens = tokenizer(
        [question.lstrip() for question in rows["question"]],
        rows["context"],
        truncation="only_second",
        max_length=recipe["sequence_length"],
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length",
    )
    sources = tokens.pop("overflow_to_sample_mapping")
    starts, ends = [], []
    for window, offsets in enumerate(tokens.pop("offset_mapping")):
        answer = rows["answers"][sources[window]]
        first = last = 0  # the [CLS] token: no answer in this window
        if answer["answer_start"]:
            begin = answer["answer_start"][0]
            end = begin + len(answer["text"][0])
            parts = tokens.sequence_ids(window)
            context = [i for i, part in enumerate(parts) if part == 1]
            if context and offsets[context[0]][0] <= begin and end <= offsets[context[-1]][1]:
                first = max(i for i in context if offsets[i][0] <= begin)
                last = min(i for i in context if offsets[i][1] >= end)
        starts.append(first)
        ends.append(last)
    return {**tokens, "start_positions": starts, "end_positions": ends}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: train.py RECIPE --output_dir DIR [TrainingArguments flags]")
    told, *flags = sys.argv[1:]
    recipe = json.loads(told if told.startswith("{") else Path(told).read_text(encoding="utf-8"))
    if not hasattr(training_args, "ParallelismConfig"):
        # transformers 4.56 with accelerate < 1.10.1 names this type without importing it,
        # and HfArgumentParser, which looks every type up, fails.
        training_args.ParallelismConfig = str
    parser = HfArgumentParser((RecipeArguments, TrainingArguments))
    parser.set_defaults(learning_rate=recipe["learning_rate"])
    arguments, training_arguments = parser.parse_args_into_dataclasses(flags)
    set_seed(training_arguments.seed)

    with training_arguments.main_process_first(desc="loading model and data"):
        model, model_name = build_model(recipe, arguments.synthetic)
        data, data_name = build_data(recipe, model.config, arguments)
    if training_arguments.process_index == 0:
        print(f"model: {model_name}\ndata: {data_name}, {len(data)} samples")

    trainer = Trainer(
        model=model,
        args=training_arguments,
        train_dataset=data,
        data_collator=default_data_collator,
    )
    trainer.train()
    trainer.save_model()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # Ranks that leave at different times die. The group is never freed: the model would do
        # it with the interpreter's lock held, and wait for a thread of gloo's, which waits for
        # that lock to free its last tensors (pytorch/pytorch#56297, torch 2.13).
        torch.distributed.barrier()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch.distributed.group.WORLD))
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
