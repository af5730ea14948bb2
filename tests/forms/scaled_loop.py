"""A loop under autocast with a GradScaler."""

import torch
from made import bert, loader

model = bert()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu", enabled=False)
for _ in range(3):
    for batch in loader():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
