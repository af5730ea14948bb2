"""A loop over two models, each with an optimizer of its own, that step in turn."""

import torch
from made import layers, numbers

maker, judge = layers(8, 64, 64), layers(64, 64, 1)
first, second = (torch.optim.Adam(part.parameters()) for part in (maker, judge))
bce = torch.nn.functional.binary_cross_entropy_with_logits
for _ in range(3):
    for real, _labels in numbers():
        fake = maker(torch.randn(len(real), 8))
        second.zero_grad()
        seen, made = judge(real), judge(fake.detach())
        (bce(seen, torch.ones_like(seen)) + bce(made, torch.zeros_like(made))).backward()
        second.step()
        first.zero_grad()
        fooled = judge(fake)
        bce(fooled, torch.ones_like(fooled)).backward()
        first.step()
