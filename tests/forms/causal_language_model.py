"""A Trainer over text, padded on the right."""

import torch
from made import Rows, llama, trainer


class Text(Rows):
    def __getitem__(self, index):
        one = super().__getitem__(index)
        one["labels"] = torch.where(one["attention_mask"] == 1, one["input_ids"], -100)
        return one


trainer(llama(), data=Text()).train()
