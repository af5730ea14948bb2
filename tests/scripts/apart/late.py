"""One rank alone changes its weights in the last steps, or after the training: the argument."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    when = sys.argv[1]
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    x = torch.randn(240, 16)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (inputs, labels) in enumerate(loader):
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(inputs), labels))
        if when == "rate" and step == 12 and accelerator.is_main_process:
            optimizer.param_groups[0]["lr"] = 0.001
        if when == "weights" and step == 12 and accelerator.is_main_process:
            model.module.weight.grad += 1.0
        optimizer.step()
    if when == "after" and accelerator.is_main_process:
        model.module.weight.data.copy_(model.module.weight.data / 2)
    print("trained", flush=True)


if __name__ == "__main__":
    main()
