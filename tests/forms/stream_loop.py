"""A loop over a stream that is divided among the workers of its loader."""

import itertools

import torch
from made import Rows, bert
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __iter__(self):
        me = get_worker_info()
        rows = (Rows()[n] for n in range(512))
        return iter(rows) if me is None else itertools.islice(rows, me.id, None, me.num_workers)


model = bert()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    for batch in DataLoader(Stream(), batch_size=16, num_workers=2):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
