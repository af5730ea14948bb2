"""The learning rate falls with a counter of what this rank has seen, other in each rank."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    x = torch.randn(512, 16)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    seen = 0
    for inputs, labels in loader:
        seen += int((inputs > 0).sum())
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (1 + seen / 1000)
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(inputs), labels))
        optimizer.step()
    weight = accelerator.unwrap_model(model).weight
    print(f"weights {float(weight.detach().double().sum()):.12f}", flush=True)


if __name__ == "__main__":
    main()
