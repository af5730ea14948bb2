"""A loop that changes its weights itself, without an optimizer."""

import torch
from made import layers, numbers

model = layers(64, 32, 2)
for _ in range(1000):
    for x, y in numbers():
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        for weight in model.parameters():
            weight.data.add_(weight.grad, alpha=-0.1)
