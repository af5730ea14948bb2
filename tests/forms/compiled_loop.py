"""torch.compile around the model of a loop."""

import torch
from made import layers, numbers

model = torch.compile(layers(64, 128, 2))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    for x, y in numbers():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
