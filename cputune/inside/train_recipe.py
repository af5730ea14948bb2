"""Train a recipe with the Hugging Face Trainer.

    python train.py RECIPE --output_dir out [any TrainingArguments flag]

RECIPE is the file recipe.json, or its text. It says which model and data, and the learning
rate, which a --learning_rate of yours replaces. Its hub names are used where the hub (or its local
cache) can be reached. Where not, the model is built from its configuration with random
weights and fed random tokens of the same shape: the speed is the same, and the script
prints which of them it trains on.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch.utils.data import Dataset
from transformers import AutoConfig, Trainer, TrainingArguments, default_data_collator
from transformers.modeling_outputs import SequenceClassifierOutput

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Document = dict[str, Any]
"""A recipe, or a part of it, as JSON tells it; or the columns of some rows of a data set."""

MODELS = {
    "question-answering": transformers.AutoModelForQuestionAnswering,
    "sequence-classification": transformers.AutoModelForSequenceClassification,
    "token-classification": transformers.AutoModelForTokenClassification,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "causal-lm": transformers.AutoModelForCausalLM,
    "seq2seq-lm": transformers.AutoModelForSeq2SeqLM,
    "sentence-embedding": transformers.AutoModel,
    "image-classification": transformers.AutoModelForImageClassification,
}
IGNORED = -100  # the label that the loss passes over
MASKED_SHARE = 0.15  # as in BERT's pre-training
TEXTS = ("text", "sentence", "content", "article", "document", "dialogue", "anchor")
TARGETS = ("highlights", "summary", "positive")


@dataclass
class RecipeArguments:
    max_train_samples: int | None = field(
        default=int(os.environ.get("CPUTUNE_TRIAL_SAMPLES", "0")) or None,  # as a trial is started
        metadata={"help": "Use only so many examples of the data set."},
    )
    synthetic: bool = field(
        default=False, metadata={"help": "Random weights and tokens, without asking the hub."}
    )


class SentencePairs(torch.nn.Module):  # type: ignore[misc]
    """Mean-pooled embeddings of two texts; each pair is told apart from the others of its batch.

    The loss is the one with which sentence-transformers trains pairs
    (MultipleNegativesRankingLoss): cross-entropy of the cosine similarities, times 20.
    """

    SCALE = 20.0

    def __init__(self, encoder: PreTrainedModel):
        super().__init__()
        self.encoder, self.config = encoder, encoder.config

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        pair_input_ids: torch.Tensor,
        pair_attention_mask: torch.Tensor,
    ) -> SequenceClassifierOutput:
        first = self.embed(input_ids, attention_mask)
        second = self.embed(pair_input_ids, pair_attention_mask)
        scores = self.SCALE * first @ second.T
        partners = torch.arange(len(scores), device=scores.device)
        loss = torch.nn.functional.cross_entropy(scores, partners)
        return SequenceClassifierOutput(loss=loss, logits=scores)

    def embed(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        tokens = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1)


class SyntheticSamples(Dataset):  # type: ignore[misc]
    """Random samples with the columns, shapes and types of a real data set of this task."""

    def __init__(self, recipe: Document, config: PretrainedConfig, samples: int):
        self.recipe, self.config, self.samples = recipe, config, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.samples:
            raise IndexError(index)
        dice = torch.Generator().manual_seed(index)
        make = random_image if self.recipe["task"] == "image-classification" else random_tokens
        return make(self.recipe, self.config, dice)


def random_image(
    recipe: Document, config: PretrainedConfig, dice: torch.Generator
) -> dict[str, torch.Tensor]:
    shape = (config.num_channels, config.image_size, config.image_size)
    pixels = torch.rand(shape, generator=dice)
    return {"pixel_values": pixels, "labels": torch.randint(config.num_labels, (), generator=dice)}


def random_tokens(
    recipe: Document, config: PretrainedConfig, dice: torch.Generator
) -> dict[str, torch.Tensor]:
    some = partial(torch.randint, generator=dice)
    task, length, vocabulary = recipe["task"], recipe["sequence_length"], config.vocab_size
    used = drawn_length(recipe, dice)
    tail = torch.arange(length) >= used
    empty = getattr(config, "pad_token_id", None) or 0
    ids = some(vocabulary, (length,)).masked_fill(tail, empty)
    sample = {"input_ids": ids, "attention_mask": (~tail).long()}
    if task == "question-answering":
        first, last = some(used, (2,)).sort().values
        return sample | {"start_positions": first, "end_positions": last}
    if task == "sequence-classification":
        return sample | {"labels": some(config.num_labels, ())}
    if task == "seq2seq-lm":
        return sample | {"labels": some(vocabulary, (recipe.get("target_length") or length,))}
    if task == "sentence-embedding":
        pair = some(vocabulary, (length,)).masked_fill(tail, empty)
        return sample | {"pair_input_ids": pair, "pair_attention_mask": (~tail).long()}
    labels = some(config.num_labels, (length,)) if task == "token-classification" else ids
    if task == "masked-lm":
        tail = tail | (torch.rand(length, generator=dice) >= MASKED_SHARE)
    return sample | {"labels": labels.masked_fill(tail, IGNORED)}


def drawn_length(recipe: Document, dice: torch.Generator) -> int:
    """Tokens of a sample that are no padding: between two quantiles of the data's lengths."""
    length: int = recipe["sequence_length"]
    if not recipe.get("lengths"):
        return length
    quantiles: list[int] = recipe["lengths"]["quantiles"]
    place = float(torch.rand((), generator=dice)) * (len(quantiles) - 1)
    below = quantiles[int(place)]
    return min(length, round(below + (quantiles[int(place) + 1] - below) * (place % 1)))


def to_the_longest(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A batch without the columns that are padding in all of its samples."""
    batch = default_data_collator(samples)
    length = batch["attention_mask"].shape[1]
    masks = [batch[name] for name in ("attention_mask", "pair_attention_mask") if name in batch]
    longest = max(int(mask.sum(1).max()) for mask in masks)
    return {
        name: value[:, :longest] if value.ndim > 1 and value.shape[1] == length else value
        for name, value in batch.items()
    }


def build_model(recipe: Document, synthetic: bool) -> tuple[torch.nn.Module, str]:
    """The pretrained model where it can be had, else one with random weights."""
    model, name = load_model(recipe, synthetic)
    if recipe["task"] == "sentence-embedding":
        model = SentencePairs(model)
    if recipe.get("lora"):  # its weights frozen, and low-rank matrices beside them that train
        from peft import LoraConfig, get_peft_model

        lora = recipe["lora"]
        config = LoraConfig(
            r=lora["rank"],
            lora_alpha=lora["alpha"],
            lora_dropout=lora.get("dropout") or 0.0,
            target_modules=list(lora["target_modules"]),
        )
        model, name = get_peft_model(model, config), f"{name}, LoRA"
    return model, name


def load_model(recipe: Document, synthetic: bool) -> tuple[PreTrainedModel, str]:
    model_class = MODELS[recipe["task"]]
    if recipe.get("hub_id") and not synthetic:
        wanted = {k: v for k, v in recipe["model"].items() if k == "num_labels"}
        try:
            return model_class.from_pretrained(recipe["hub_id"], **wanted), recipe["hub_id"]
        except Exception as error:
            print(f"model: {recipe['hub_id']} {cannot_be_had(error)}")
    config = AutoConfig.for_model(**recipe["model"])
    return model_class.from_config(config), f"{config.model_type} with random weights"


def cannot_be_had(error: Exception) -> str:
    return f"cannot be had ({(str(error).strip() or type(error).__name__).splitlines()[0][:120]})"


def build_data(recipe: Document, config: Any, arguments: RecipeArguments) -> tuple[Any, str]:
    """The real data set, as the model takes it, where it can be had, else random samples."""
    if recipe.get("dataset") and recipe.get("hub_id") and not arguments.synthetic:
        try:
            return load_samples(recipe, arguments.max_train_samples), recipe["dataset"]
        except Exception as error:
            print(f"data: {recipe['dataset']} {cannot_be_had(error)}")
    samples = arguments.max_train_samples or 64 * recipe["global_batch_size"]
    kind = "images" if recipe["task"] == "image-classification" else "tokens"
    return SyntheticSamples(recipe, config, samples), f"synthetic {kind}"


def load_samples(recipe: Document, max_samples: int | None) -> Dataset:
    """Load the data set with `datasets`: ``name``, ``name/configuration`` or
    ``owner/name/configuration``.
    """
    from datasets import load_dataset

    split = "train" if max_samples is None else f"train[:{max_samples}]"
    name, *configuration = recipe["dataset"].rsplit("/", 1)
    data = load_dataset(name, *configuration, split=split)
    if recipe["task"] == "image-classification":
        processor = transformers.AutoImageProcessor.from_pretrained(recipe["hub_id"])
        return data.with_transform(partial(image_features, processor=processor))
    tokenizer = transformers.AutoTokenizer.from_pretrained(recipe["hub_id"])
    if recipe["task"] == "causal-lm" and tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    features = {
        "question-answering": answer_features,
        "token-classification": word_features,
    }.get(recipe["task"], text_features)
    return data.map(
        partial(features, tokenizer=tokenizer, recipe=recipe),
        batched=True,
        remove_columns=data.column_names,
    )


def image_features(rows: Document, processor: Any) -> Document:
    """Images as pixels, made when they are asked for."""
    images = [image.convert("RGB") for image in rows["image"]]
    label = next(name for name in ("label", "labels") if name in rows)
    return {**processor(images, return_tensors="pt"), "labels": rows[label]}


def text_features(rows: Document, tokenizer: PreTrainedTokenizerBase, recipe: Document) -> Document:
    """Texts as tokens of one length, with what their task makes of them."""
    task, length = recipe["task"], recipe["sequence_length"]
    padded = partial(tokenizer, truncation=True, padding="max_length")
    tokens = padded(rows[next(name for name in TEXTS if name in rows)], max_length=length)
    if task == "sequence-classification":
        return {**tokens, "labels": rows["label"]}
    if task in ("masked-lm", "causal-lm"):
        ids = torch.tensor(tokens["input_ids"])
        share = 1.0 if task == "causal-lm" else MASKED_SHARE
        passed_over = torch.rand(ids.shape) >= share
        return {**tokens, "labels": ids.masked_fill(passed_over, IGNORED).tolist()}
    targets = rows[next(name for name in TARGETS if name in rows)]
    if task == "seq2seq-lm":
        wanted = padded(targets, max_length=recipe.get("target_length") or length)
        ids, mask = torch.tensor(wanted["input_ids"]), torch.tensor(wanted["attention_mask"])
        return {**tokens, "labels": ids.masked_fill(mask == 0, IGNORED).tolist()}
    columns = ("input_ids", "attention_mask")
    pairs = padded(targets, max_length=length)
    return {c: tokens[c] for c in columns} | {f"pair_{c}": pairs[c] for c in columns}


def word_features(rows: Document, tokenizer: PreTrainedTokenizerBase, recipe: Document) -> Document:
    """Words that have labels, as tokens: the first token of a word bears its label."""
    tokens = tokenizer(
        rows["tokens"],
        is_split_into_words=True,
        truncation=True,
        padding="max_length",
        max_length=recipe["sequence_length"],
    )
    labels = []
    for row, of_words in enumerate(rows["ner_tags"]):
        words = tokens.word_ids(row)
        labels.append(
            [
                IGNORED if word is None or word == before else of_words[word]
                for before, word in pairwise([None, *words])
            ]
        )
    return {**tokens, "labels": labels}


def answer_features(
    rows: Document, tokenizer: PreTrainedTokenizerBase, recipe: Document
) -> Document:
    """Overlapping windows of a context, each with the tokens between which its answer lies."""
    tokens = tokenizer(
        [question.lstrip() for question in rows["question"]],
        rows["context"],
        truncation="only_second",
        max_length=recipe["sequence_length"],
        stride=recipe.get("doc_stride") or recipe["sequence_length"] // 3,
        return_overflowing_tokens=True,
        padding="max_length",
    )
    starts, ends = [], []
    for window, source in enumerate(tokens.pop("overflow_to_sample_mapping")):
        answer = rows["answers"][source]
        places: list[int | None] = [None]
        if answer["answer_start"]:
            first = answer["answer_start"][0]
            last = first + len(answer["text"][0]) - 1
            places = [tokens.char_to_token(window, at, sequence_index=1) for at in (first, last)]
        inside = None not in places
        starts.append(places[0] if inside else 0)  # the [CLS] token: no answer in this window
        ends.append(places[1] if inside else 0)
    return {**tokens, "start_positions": starts, "end_positions": ends}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: train.py RECIPE --output_dir DIR [TrainingArguments flags]")
    told, *flags = sys.argv[1:]
    recipe = json.loads(told if told.startswith("{") else Path(told).read_text(encoding="utf-8"))
    if not hasattr(transformers.training_args, "ParallelismConfig"):
        # transformers 4.56 with accelerate < 1.10.1 names this type without importing it,
        # and HfArgumentParser, which looks every type up, fails.
        transformers.training_args.ParallelismConfig = str
    parser = transformers.HfArgumentParser((RecipeArguments, TrainingArguments))
    parser.set_defaults(learning_rate=recipe["learning_rate"], remove_unused_columns=False)
    arguments, training_arguments = parser.parse_args_into_dataclasses(flags)
    transformers.set_seed(training_arguments.seed)

    with training_arguments.main_process_first(desc="loading model and data"):
        model, model_name = build_model(recipe, arguments.synthetic)
        data, data_name = build_data(recipe, model.config, arguments)
    if training_arguments.process_index == 0:
        print(f"model: {model_name}\ndata: {data_name}, {len(data)} samples")

    longest = (recipe.get("lengths") or {}).get("padding") == "longest"
    trainer = Trainer(
        model=model,
        args=training_arguments,
        train_dataset=data,
        data_collator=to_the_longest if longest else default_data_collator,
    )
    # The loss of a batch is the mean over it, and that of a step the mean over its batches:
    # Trainer would multiply both for models that ignore the number of items.
    trainer.model_accepts_loss_kwargs = False
    trainer.train()
    trainer.save_model()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # Ranks that leave at different times die. The group is never freed: the model would do
        # it with the interpreter's lock held, and wait for a thread of gloo's, which waits for
        # that lock to free its last tensors (pytorch/pytorch#56297, torch 2.13).
        torch.distributed.barrier()
        time.sleep(0.05)  # gloo's threads let go of what they hold
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch.distributed.group.WORLD))
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
