"""A loop over two loaders at once, one task each."""

import torch
from made import layers, numbers

body, heads = layers(64, 64), [torch.nn.Linear(64, 2) for _ in range(2)]
parameters = [*body.parameters(), *(p for head in heads for p in head.parameters())]
optimizer = torch.optim.AdamW(parameters)
for _ in range(3):
    for batches in zip(numbers(16), numbers(32), strict=False):
        optimizer.zero_grad()
        losses = [
            torch.nn.functional.cross_entropy(head(body(x)), y)
            for head, (x, y) in zip(heads, batches, strict=True)
        ]
        sum(losses).backward()
        optimizer.step()
