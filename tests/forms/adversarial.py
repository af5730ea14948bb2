"""A loop with two backward passes a step: the second with embeddings that were moved (FGM)."""

import torch
from made import bert, loader

model = bert()
optimizer = torch.optim.AdamW(model.parameters())
words = model.bert.embeddings.word_embeddings.weight
for _ in range(3):
    for batch in loader():
        optimizer.zero_grad()
        model(**batch).loss.backward()
        moved = words.grad / (words.grad.norm() + 1e-8)
        words.data.add_(moved)
        model(**batch).loss.backward()
        words.data.sub_(moved)
        optimizer.step()
