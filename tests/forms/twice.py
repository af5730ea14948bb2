"""A script that trains a Trainer twice, the second time with another batch."""

from made import bert, trainer

model = bert()
trainer(model, max_steps=4).train()
trainer(model, per_device_train_batch_size=16).train()
