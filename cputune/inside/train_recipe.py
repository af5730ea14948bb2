"""Train a recipe with the Hugging Face Trainer.

    python train.py RECIPE --output_dir out [any TrainingArguments flag]

RECIPE is the file recipe.json, or its text. It says which model and samples of which shape, and the
learning rate, which a --learning_rate of yours replaces. The model is built from its configuration
with random weights and fed random tokens (or pixels): a step takes as long as with real ones.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)
from transformers.modeling_outputs import SequenceClassifierOutput

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# A recipe, or a part of it, as JSON tells it.
Document = dict[str, Any]

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


@dataclass
class RecipeArguments:
    max_train_samples: int = field(
        default=2048, metadata={"help": "Samples of a pass over the data."}
    )


class SentencePairs(torch.nn.Module):  # type: ignore[misc]
    """Mean-pooled embeddings of two texts; each pair is distinguished from the others of its batch.

    The loss is that of sentence-transformers (MultipleNegativesRankingLoss): cross-entropy of the
    cosine similarities, times 20.
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
        generator = torch.Generator().manual_seed(index)
        if self.recipe["task"] == "image-classification":
            make = random_image
        else:
            make = random_tokens
        return make(self.recipe, self.config, generator)


def random_image(
    recipe: Document, config: PretrainedConfig, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    shape = (config.num_channels, config.image_size, config.image_size)
    pixels = torch.rand(shape, generator=generator)
    return {
        "pixel_values": pixels,
        "labels": torch.randint(config.num_labels, (), generator=generator),
    }


def random_tokens(
    recipe: Document, config: PretrainedConfig, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    some = partial(torch.randint, generator=generator)
    task, length, vocabulary = recipe["task"], recipe["sequence_length"], config.vocab_size
    used = drawn_length(recipe, generator)
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
    if task == "token-classification":
        labels = some(config.num_labels, (length,))
    else:
        labels = ids
    if task == "masked-lm":
        tail = tail | (torch.rand(length, generator=generator) >= MASKED_SHARE)
    return sample | {"labels": labels.masked_fill(tail, IGNORED)}


def drawn_length(recipe: Document, generator: torch.Generator) -> int:
    """Tokens of a sample that are not padding: between two quantiles of the data's lengths."""
    length: int = recipe["sequence_length"]
    if not recipe.get("lengths"):
        return length
    quantiles: list[int] = recipe["lengths"]["quantiles"]
    place = float(torch.rand((), generator=generator)) * (len(quantiles) - 1)
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


def build_model(recipe: Document) -> tuple[torch.nn.Module, str]:
    """The model with random weights, and what it is."""
    config = AutoConfig.for_model(**recipe["model"])
    model = MODELS[recipe["task"]].from_config(config)
    name = f"{config.model_type} with random weights"
    if recipe["task"] == "sentence-embedding":
        model = SentencePairs(model)
    if recipe.get("lora"):  # its weights frozen, and additional low-rank matrices that train
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


class OwnDraws(TrainerCallback):  # type: ignore[misc]
    """Lets each rank after the first draw its own numbers.

    Trainer seeds every rank alike, so that two ranks would drop the same units for different
    samples. It begins with the first step, after the order of the samples was drawn.
    """

    def __init__(self) -> None:
        self._begun = False

    def on_step_begin(self, args: TrainingArguments, *_: object, **__: object) -> None:
        """Before the first step."""
        if self._begun or args.process_index == 0:
            return
        self._begun = True
        seed = (torch.initial_seed() ^ args.process_index * 0x9E3779B97F4A7C15) & (1 << 63) - 1
        state = torch.Generator().manual_seed(seed).get_state()
        state[:8] = torch.get_rng_state()[:8]  # the seed that samplers are made from
        torch.set_rng_state(state)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: train.py RECIPE --output_dir DIR [TrainingArguments flags]")
    path, *flags = sys.argv[1:]
    recipe = json.loads(path if path.startswith("{") else Path(path).read_text(encoding="utf-8"))
    if not hasattr(transformers.training_args, "ParallelismConfig"):
        # transformers 4.56 with accelerate < 1.10.1 names this type without importing it,
        # and HfArgumentParser, which looks every type up, fails.
        transformers.training_args.ParallelismConfig = str
    parser = transformers.HfArgumentParser((RecipeArguments, TrainingArguments))
    parser.set_defaults(learning_rate=recipe["learning_rate"], remove_unused_columns=False)
    arguments, training_arguments = parser.parse_args_into_dataclasses(flags)
    transformers.set_seed(training_arguments.seed)

    model, model_name = build_model(recipe)
    data = SyntheticSamples(recipe, model.config, arguments.max_train_samples)
    if training_arguments.process_index == 0:
        kind = "tokens"
        if recipe["task"] == "image-classification":
            kind = "images"
        print(f"model: {model_name}\ndata: synthetic {kind}, {len(data)} samples")

    longest = (recipe.get("lengths") or {}).get("padding") == "longest"
    trainer = Trainer(
        model=model,
        args=training_arguments,
        train_dataset=data,
        data_collator=to_the_longest if longest else default_data_collator,
        callbacks=[OwnDraws()],
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
