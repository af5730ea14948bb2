"""Lightning that accumulates, clips, and steps a schedule by the length of its training."""

import lightning.pytorch as pl
import torch
from made import layers, numbers


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = layers(64, 128, 2)

    def training_step(self, batch, number):
        return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


pl.Trainer(max_epochs=2, accelerator="cpu", accumulate_grad_batches=4, gradient_clip_val=1.0).fit(
    Module(), numbers()
)
