"""Lightning's Trainer: validation, a checkpoint, early stopping, a schedule by the validation."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from made import layers, numbers


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = layers(64, 128, 2)

    def training_step(self, batch, number):
        return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch, number):
        self.log("val_loss", torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"},
        }


callbacks = [ModelCheckpoint(monitor="val_loss"), EarlyStopping("val_loss")]
pl.Trainer(max_epochs=2, accelerator="cpu", callbacks=callbacks).fit(Module(), numbers(), numbers())
