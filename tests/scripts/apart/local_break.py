"""Training ends early by the loss of this rank alone: the others wait for its gradients."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    x = torch.randn(512, 16)
    x[torch.arange(512) % 16 > 7] *= 2  # every second batch
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    total = 0.0
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        total += loss.item()
        if total > 100:
            break
    if "gather" in sys.argv:  # an evaluation that all ranks take part in
        accelerator.gather(loss.detach())
    print("trained", flush=True)


if __name__ == "__main__":
    main()
