"""A loop over Lightning's Fabric."""

import torch
from lightning.fabric import Fabric
from made import layers, numbers

fabric = Fabric(accelerator="cpu")
net = layers(64, 128, 2)
model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters()))
for _ in range(3):
    for x, y in fabric.setup_dataloaders(numbers()):
        optimizer.zero_grad()
        fabric.backward(torch.nn.functional.cross_entropy(model(x), y))
        optimizer.step()
