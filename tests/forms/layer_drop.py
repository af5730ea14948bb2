"""A Trainer of a model that leaves out whole layers in each step, other ones each time."""

import torch
from made import Rows, trainer
from transformers import BartConfig, BartForSequenceClassification


class Ended(Rows):
    """Each sample ends with the token by which BART classifies."""

    def __getitem__(self, index):
        one = super().__getitem__(index)
        one["input_ids"][-1] = 2
        one["attention_mask"] = torch.ones_like(one["attention_mask"])
        return one


config = BartConfig(
    vocab_size=65, d_model=32, encoder_layers=4, decoder_layers=4, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_labels=2,
    encoder_layerdrop=0.5, decoder_layerdrop=0.5, max_position_embeddings=64,
)  # fmt: skip
trainer(BartForSequenceClassification(config), data=Ended()).train()
