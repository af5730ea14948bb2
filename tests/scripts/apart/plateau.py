"""ReduceLROnPlateau is given the loss of one rank: each rank has a learning rate of its own."""

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
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2, factor=0.5)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(2):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), labels + torch.randn(len(labels), 1))
            accelerator.backward(loss)
            optimizer.step()
            schedule.step(loss.item())
    weight = accelerator.unwrap_model(model).weight
    print(f"weights {float(weight.detach().double().sum()):.12f}", flush=True)


if __name__ == "__main__":
    main()
