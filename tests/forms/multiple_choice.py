"""A Trainer over choices: masks of samples × choices × tokens."""

import torch
from made import Rows, bert, trainer


class Choices(Rows):
    def __getitem__(self, index):
        four = [Rows.__getitem__(self, (4 * index + n) % len(self)) for n in range(4)]
        kept = ("input_ids", "attention_mask")
        both = {name: torch.stack([one[name][:24] for one in four]) for name in kept}
        both["attention_mask"][:, 12:] = 0
        return {**both, "labels": torch.tensor(index % 4)}


trainer(bert("BertForMultipleChoice"), data=Choices()).train()
