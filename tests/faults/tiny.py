"""A model and data so small that a step takes milliseconds; shared by the scripts here."""

import torch
from transformers import BertConfig, BertForSequenceClassification

LENGTH = 16


def model():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
    )
    return BertForSequenceClassification(config)


class Data(torch.utils.data.Dataset):
    def __init__(self, samples=64):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        if index >= self.samples:
            raise IndexError(index)
        dice = torch.Generator().manual_seed(index)
        ids = torch.randint(100, (LENGTH,), generator=dice)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": torch.tensor(index % 2),
        }
