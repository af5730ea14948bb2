"""An Accelerator's loop over a model that leaves out a layer in few of its steps."""

import torch
from accelerate import Accelerator
from made import Rows
from torch.utils.data import DataLoader
from transformers import BartConfig, BartForSequenceClassification


class Ended(Rows):
    """Each sample ends with the token by which BART classifies."""

    def __getitem__(self, index):
        one = super().__getitem__(index)
        one["input_ids"][-1] = 2
        one["attention_mask"] = torch.ones_like(one["attention_mask"])
        return one


config = BartConfig(
    vocab_size=65, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_labels=2,
    encoder_layerdrop=0.1, decoder_layerdrop=0.1, max_position_embeddings=64,
)  # fmt: skip
accelerator = Accelerator(cpu=True)
model = BartForSequenceClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer, batches = accelerator.prepare(
    model, optimizer, DataLoader(Ended(), batch_size=16, shuffle=True)
)
for _ in range(3):
    for batch in batches:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
