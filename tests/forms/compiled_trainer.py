"""A Trainer with torch_compile."""

from made import bert, trainer

trainer(bert(), torch_compile=True).train()
