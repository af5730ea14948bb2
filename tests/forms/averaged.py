"""A loop that keeps an exponential average of its weights."""

import torch
from made import layers, numbers
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

model = layers(64, 128, 2)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    for x, y in numbers():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        average.update_parameters(model)
