"""The optimizer draws noise for its gradients, in each rank other numbers."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class NoisySGD(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.add_(torch.randn_like(parameter.grad), alpha=0.1)
        return super().step(closure)


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(accelerator.process_index)
    dice = torch.Generator().manual_seed(0)
    x = torch.randn(256, 16, generator=dice)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    model = nn.Linear(16, 1)
    optimizer = NoisySGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(2):
        for inputs, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(inputs), labels))
            optimizer.step()
    weight = accelerator.unwrap_model(model).weight
    print(f"weights {float(weight.detach().double().sum()):.12f}", flush=True)


if __name__ == "__main__":
    main()
