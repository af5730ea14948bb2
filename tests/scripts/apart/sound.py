"""What differs between ranks and is no fault: batch statistics, an average on rank 0, dropout."""

import copy

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    x = torch.randn(512, 16)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(), nn.ReLU(), nn.Linear(32, 1)
    )
    averaged = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    layers = accelerator.unwrap_model(model)
    for _ in range(2):
        for inputs, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(inputs), labels))
            optimizer.step()
            if accelerator.is_main_process:
                for mean, now in zip(averaged.parameters(), layers.parameters(), strict=True):
                    mean.data.lerp_(now.data, 0.1)
    if accelerator.is_main_process:  # weights of rank 0 alone are changed after the training
        layers.load_state_dict(averaged.state_dict())
        torch.save(layers.state_dict(), "model.pt")
    accelerator.wait_for_everyone()
    print("trained", flush=True)


if __name__ == "__main__":
    main()
