"""A Trainer whose loss compares all samples of a batch, seen twice with dropout (SimCSE)."""

import torch
from made import bert, trainer
from transformers import Trainer


class SimCse(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
        one, two = (
            torch.nn.functional.normalize(model(**inputs).last_hidden_state[:, 0], dim=-1)
            for _ in range(2)
        )
        return torch.nn.functional.cross_entropy(one @ two.T / 0.05, torch.arange(len(one)))


trainer(bert("BertModel"), SimCse, remove_unused_columns=False).train()
