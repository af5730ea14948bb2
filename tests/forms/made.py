"""What the forms of this folder train: models so small that a step takes milliseconds."""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader, Dataset, TensorDataset

LENGTH = 32
SIZES = {
    "vocab_size": 65,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}


def bert(kind: str = "BertForSequenceClassification", **more: Any) -> Any:
    """A BERT of two layers with a head of this kind."""
    return getattr(transformers, kind)(transformers.BertConfig(**SIZES, **more))


def llama() -> Any:
    """A decoder of two layers."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, pad_token_id=0))


class Rows(Dataset):  # type: ignore[type-arg]
    """Samples of tokens with a label, each padded to LENGTH."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= len(self):  # so that they can be gone through one by one
            raise IndexError(index)
        dice = random.Random(index)
        used = dice.randint(4, LENGTH)
        ids = [dice.randint(5, 64) for _ in range(used)]
        return {
            "input_ids": torch.tensor(ids + [0] * (LENGTH - used)),
            "attention_mask": (torch.arange(LENGTH) < used).long(),
            "labels": torch.tensor(used % 2),
        }


def loader(size: int = 16) -> Any:
    """Batches of them."""
    return DataLoader(Rows(), batch_size=size, shuffle=True)


def numbers(size: int = 16) -> Any:
    """Batches of 64 numbers with a class of two."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 64), torch.randint(0, 2, (512,)))
    return DataLoader(data, batch_size=size, shuffle=True)


def layers(*widths: int) -> Any:
    """Layers of so many numbers each, with a ReLU between them."""
    found: list[Any] = []
    for before, after in itertools.pairwise(widths):
        found += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*found[:-1])


def arguments(**more: Any) -> Any:
    """TrainingArguments on CPUs."""
    fixed = {"output_dir": "trained", "use_cpu": True, "report_to": "none", "max_steps": 20}
    return transformers.TrainingArguments(
        **{**fixed, "per_device_train_batch_size": 8, **more}  # type: ignore[arg-type]
    )


def trainer(model: Any, kind: Any = transformers.Trainer, data: Any = None, **more: Any) -> Any:
    """A Trainer of it over the rows."""
    return kind(model=model, args=arguments(**more), train_dataset=data or Rows())
