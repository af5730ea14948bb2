"""A Trainer that groups its samples by their length."""

import inspect

from made import Rows, bert, trainer
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast, TrainingArguments


class Unpadded(Rows):
    def __getitem__(self, index):
        one = super().__getitem__(index)
        used = int(one["attention_mask"].sum())
        return {name: v[:used] if v.ndim else v for name, v in one.items()}


from tokenizers import Tokenizer, models  # noqa: E402

tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0})), pad_token="[PAD]"
)
new = "train_sampling_strategy" in inspect.signature(TrainingArguments).parameters
how = {"train_sampling_strategy": "group_by_length"} if new else {"group_by_length": True}
made = trainer(bert(), data=Unpadded(), **how)
made.data_collator = DataCollatorWithPadding(tokenizer)
made.train()
