"""A loop over an LSTM that carries its state from batch to batch."""

import torch
from made import numbers

cell, head = torch.nn.LSTM(1, 32, batch_first=True), torch.nn.Linear(32, 2)
optimizer = torch.optim.RMSprop([*cell.parameters(), *head.parameters()])
state = None
for _ in range(3):
    for x, y in numbers():
        seen, state = cell(x.unsqueeze(-1), state)
        state = tuple(one.detach() for one in state)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(head(seen[:, -1]), y).backward()
        optimizer.step()
