"""A Trainer is made, and never trained: --do_train is missing."""

from tiny import Data, model
from transformers import Trainer, TrainingArguments

Trainer(model=model(), args=TrainingArguments(output_dir="out"), train_dataset=Data())
