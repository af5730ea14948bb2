"""A Trainer that learns from a teacher."""

import torch
from made import bert, trainer
from transformers import Trainer

teacher = bert().eval()


class Distilling(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        seen = model(**inputs)
        with torch.no_grad():
            told = teacher(**inputs).logits
        apart = torch.nn.functional.kl_div(
            seen.logits.log_softmax(-1), told.softmax(-1), reduction="batchmean"
        )
        return seen.loss + apart


trainer(bert(), Distilling).train()
