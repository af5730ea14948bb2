"""A Trainer that computes activations again in the backward pass."""

from made import bert, trainer

trainer(bert(), gradient_checkpointing=True).train()
