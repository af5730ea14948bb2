"""An Accelerator with two optimizers for one loss."""

import torch
from accelerate import Accelerator
from made import bert, loader

accelerator = Accelerator(cpu=True)
model = bert()
body = torch.optim.AdamW(model.bert.parameters(), lr=1e-5)
head = torch.optim.SGD(model.classifier.parameters(), lr=1e-2)
model, body, head, batches = accelerator.prepare(model, body, head, loader())
for _ in range(3):
    for batch in batches:
        accelerator.backward(model(**batch).loss)
        for optimizer in (body, head):
            optimizer.step()
            optimizer.zero_grad()
