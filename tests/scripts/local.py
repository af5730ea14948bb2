"""A tokenizer, a model and data on disk, so small that a step takes milliseconds.

    python local.py DIRECTORY

writes ``DIRECTORY/bert``, ``DIRECTORY/llama`` (model and tokenizer each) and
``DIRECTORY/data/train.jsonl`` with text, pairs and labels.
"""

import json
import random
import sys
from pathlib import Path

WORDS = [f"w{number}" for number in range(60)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write(directory: Path) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    torch.manual_seed(0)
    vocabulary = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[SEP]",
        bos_token="[CLS]",
        mask_token="[MASK]",
        model_max_length=32,
    )
    sizes = {
        "vocab_size": len(vocabulary),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    }
    bert = BertForSequenceClassification(BertConfig(**sizes))
    llama = LlamaForCausalLM(LlamaConfig(**sizes, bos_token_id=2, eos_token_id=3))
    for name, model in (("bert", bert), ("llama", llama)):
        model.save_pretrained(directory / name)
        fast.save_pretrained(directory / name)

    dice = random.Random(0)
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    with (data / "train.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(256):
            one, two = (" ".join(dice.choices(WORDS, k=dice.randint(4, 12))) for _ in range(2))
            row = {"text": one, "sentence1": one, "sentence2": two}
            row |= {"label": dice.randint(0, 1), "score": dice.random()}
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
