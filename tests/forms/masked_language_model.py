"""A Trainer over masked words, the padding left out of the labels."""

import torch
from made import Rows, bert, trainer


class Masked(Rows):
    def __getitem__(self, index):
        one = super().__getitem__(index)
        ids, used = one["input_ids"], one["attention_mask"].bool()
        dice = torch.rand(ids.shape, generator=torch.Generator().manual_seed(index)) < 0.15
        dice[0] = True
        one["labels"] = torch.where(dice & used, ids, -100)
        one["input_ids"] = torch.where(dice & used, 4, ids)
        return one


trainer(bert("BertForMaskedLM"), data=Masked()).train()
