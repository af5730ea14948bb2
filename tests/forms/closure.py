"""LBFGS, whose step computes the loss several times in a closure."""

import torch
from made import layers, numbers

model = layers(64, 32, 2)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
for _ in range(3):
    for x, y in numbers(64):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
