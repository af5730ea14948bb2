"""A loop that trains the head alone."""

import torch
from made import bert, loader

model = bert()
model.bert.requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for _ in range(3):
    for batch in loader():
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
