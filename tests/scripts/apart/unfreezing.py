"""Layers thaw at step 30. DistributedDataParallel adds up only what trains when it is made."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    x = torch.randn(512, 16)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    layers = accelerator.unwrap_model(model)
    step = 0
    for _ in range(2):
        for inputs, labels in loader:
            if step == 30:
                for parameter in layers[0].parameters():
                    parameter.requires_grad = True
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(inputs), labels))
            optimizer.step()
            step += 1
            if step == 16 and accelerator.is_main_process:
                torch.save(layers.state_dict(), "checkpoint.pt")
    print(f"weights {float(layers[0].weight.detach().double().sum()):.12f}", flush=True)


if __name__ == "__main__":
    main()
