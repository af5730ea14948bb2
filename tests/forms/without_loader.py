"""A loop over slices of a tensor."""

import torch
from made import layers

model, x, y = layers(64, 32, 2), torch.randn(512, 64), torch.randint(0, 2, (512,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1000):
    for rows in torch.randperm(512).split(16):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
