"""Lightning: a LightningModule, a DataModule's loaders, validation, checkpoints, a schedule."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl


class Classifier(pl.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 2))

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.model(inputs), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, labels = batch
        assert len(labels) == 32, "an evaluation keeps its batch"
        self.log("val_loss", nn.functional.cross_entropy(self.model(inputs), labels))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=1e-2, total_steps=self.trainer.estimated_stepping_batches
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Data(pl.LightningDataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size
        x = torch.randn(128, 16)
        self.data = TensorDataset(x, (x.sum(1) > 0).long())

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.data, batch_size=32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--precision", default="32-true")
    args = parser.parse_args()
    pl.seed_everything(0)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        precision=args.precision,
        max_epochs=args.epochs,
        accumulate_grad_batches=args.accumulate,
        callbacks=[
            pl.callbacks.ModelCheckpoint(dirpath="kept", monitor="val_loss"),
            pl.callbacks.EarlyStopping(monitor="val_loss"),
        ],
    )
    model = Classifier(32)
    trainer.fit(model, datamodule=Data(args.batch_size))
    print(f"{trainer.global_step} steps, best is {trainer.checkpoint_callback.best_model_path}")


if __name__ == "__main__":
    main()
