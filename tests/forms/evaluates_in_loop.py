"""A loop that evaluates and saves every ten steps."""

import torch
from made import bert, loader

model = bert()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
step = 0
for _ in range(3):
    for batch in loader():
        model.train()
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 10 == 0:
            model.eval()
            with torch.no_grad():
                sum(float(model(**one).loss) for one in loader(64))
            torch.save(model.state_dict(), "model.pt")
