"""SAM: the weights go up, the gradient is taken there, and the step from where they were."""

import torch
from made import layers, numbers

model = layers(64, 128, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    for x, y in numbers():
        torch.nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            up = [0.05 * one.grad / (one.grad.norm() + 1e-8) for one in model.parameters()]
            for one, by in zip(model.parameters(), up, strict=True):
                one.add_(by)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for one, by in zip(model.parameters(), up, strict=True):
                one.sub_(by)
        optimizer.step()
        optimizer.zero_grad()
