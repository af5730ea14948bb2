"""Lightning with optimization by hand: a generator and what tells it from the data."""

import lightning.pytorch as pl
import torch
from made import layers, numbers

bce = torch.nn.functional.binary_cross_entropy_with_logits


class Gan(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.judge = layers(8, 64, 64), layers(64, 64, 1)

    def training_step(self, batch, number):
        real, dice = batch[0], torch.randn(len(batch[0]), 8)
        first, second = self.optimizers()
        first.zero_grad()
        fooled = self.judge(self.maker(dice))
        self.manual_backward(bce(fooled, torch.ones_like(fooled)))
        first.step()
        second.zero_grad()
        seen, made = self.judge(real), self.judge(self.maker(dice).detach())
        loss = bce(seen, torch.ones_like(seen)) + bce(made, torch.zeros_like(made))
        self.manual_backward(loss)
        second.step()

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters()) for part in (self.maker, self.judge)]


pl.Trainer(max_epochs=2, accelerator="cpu", logger=False).fit(Gan(), numbers())
