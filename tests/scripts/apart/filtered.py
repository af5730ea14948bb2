"""Each rank leaves out samples of its own batch: a mean of their gradients weighs them unlike."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    x = torch.randn(512, 16)
    keep = torch.ones(512, dtype=torch.bool)
    keep[24:28] = False  # in the second batch of the second rank
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True), keep), batch_size=8)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, labels, kept in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(inputs[kept]), labels[kept]))
        optimizer.step()
    print("trained", flush=True)


if __name__ == "__main__":
    main()
