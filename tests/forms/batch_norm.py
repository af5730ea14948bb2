"""A Trainer of convolutions with the statistics of a batch."""

import torch
from made import trainer
from torch.utils.data import Dataset


class Pictures(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        dice = torch.Generator().manual_seed(index)
        return {"pixels": torch.randn(3, 16, 16, generator=dice), "labels": index % 2}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 2),
        )  # fmt: skip

    def forward(self, pixels, labels):
        logits = self.layers(pixels)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


trainer(Net(), data=Pictures(), remove_unused_columns=False).train()
