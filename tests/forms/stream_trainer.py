"""A Trainer over a stream."""

from made import Rows, bert, trainer
from torch.utils.data import IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Rows())


trainer(bert(), data=Stream()).train()
