"""What it costs that rank 0 loads the batches of all ranks, beside each rank loading its own.

    python benchmarks/dispatch.py [--blocks 40] [--steps 5] [--only WORD]

Two ranks train a model with DistributedDataParallel. In the same processes they take blocks of
steps in turn from two loaders over the same samples: one of accelerate, which gives each rank its
own batches, and the one of a plan (``cputune.inside.applying.dispatch``). Adjacent blocks are a
pair, and the order within pairs alternates.

Prints a Markdown table: seconds of a step with each rank's own batches, and the ratio of the two
with a 95 % interval over pairs. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import torch
import torch.multiprocessing
from accelerate.data_loader import prepare_data_loader
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
)
from turns import table

from cputune.inside.applying.dispatch import Collate, Dispatch
from cputune.tuner.gains import students_quantile

BATCH, SAMPLES, RANKS = 16, 4096, 2
WARMUP = 2
"""Pairs that do not count."""


def texts(length: int) -> tuple[Any, Callable[[list[Any]], Any]]:
    """Samples of as many tokens, and what pads a batch of them."""
    data = [{"input_ids": [n % 999] * length, "labels": n % 2} for n in range(SAMPLES)]

    def collate(samples: list[Any]) -> Any:
        ids = torch.tensor([sample["input_ids"] for sample in samples])
        labels = torch.tensor([sample["labels"] for sample in samples])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}

    return data, collate


def images() -> tuple[Any, Callable[[list[Any]], Any]]:
    """Images of 224², as they are after they were decoded."""
    held = torch.randn(64, 3, 224, 224)
    data = [{"pixel_values": held[n % 64], "labels": n % 2} for n in range(SAMPLES)]

    def collate(samples: list[Any]) -> Any:
        pixels = torch.stack([sample["pixel_values"] for sample in samples])
        return {"pixel_values": pixels, "labels": torch.tensor([s["labels"] for s in samples])}

    return data, collate


def bert(layers: int, width: int) -> Any:
    """A classifier of texts."""
    size = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": 4 * width}
    return BertForSequenceClassification(
        BertConfig(**size, num_attention_heads=width // 64, vocab_size=1000)
    )


def vit() -> Any:
    """A small classifier of images."""
    size = {"num_hidden_layers": 4, "hidden_size": 192, "intermediate_size": 768}
    return ViTForImageClassification(ViTConfig(**size, num_attention_heads=3))


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "bert, 2 × 128, 64 tokens": (lambda: bert(2, 128), lambda: texts(64)),
    "bert-mini, 128 tokens": (lambda: bert(4, 256), lambda: texts(128)),
    "bert, 6 × 512, 128 tokens": (lambda: bert(6, 512), lambda: texts(128)),
    "vit, 4 × 192, 224² pixels": (vit, images),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--blocks", type=int, default=40, help="of each loader")
    parser.add_argument("--steps", type=int, default=5, help="of a block")
    parser.add_argument("--only", default="", help="cases whose name holds this word")
    options = parser.parse_args()
    rows = {}
    for name in CASES:
        if options.only in name:
            found = torch.multiprocessing.get_context("spawn").SimpleQueue()
            torch.multiprocessing.spawn(
                one_rank, (name, options.blocks, options.steps, found), nprocs=RANKS
            )
            rows[name] = found.get()
            print(name, *rows[name], file=sys.stderr)
    print(table(rows, ("model", "step", "rank 0 loads, × (95 %)")))


def one_rank(rank: int, name: str, blocks: int, steps: int, found: Any) -> None:
    """Train in this rank; rank 0 tells what it has measured."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29655")
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // RANKS))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    make_model, make_data = CASES[name]
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    loaders = [endless(make) for make in (sharded(*make_data(), rank), dispatched(*make_data()))]
    seconds: list[tuple[float, float]] = []
    for block in range(WARMUP + blocks):
        pair = [0.0, 0.0]
        for which in (0, 1) if block % 2 else (1, 0):
            torch.distributed.barrier()
            since = time.perf_counter()
            for _ in range(steps):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(**next(loaders[which])).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            pair[which] = (time.perf_counter() - since) / steps
        seconds.append((pair[0], pair[1]))
    if rank == 0:
        counted = seconds[WARMUP:]
        logs = [math.log(both[1] / both[0]) for both in counted]
        half = students_quantile(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
        low, center, high = (math.exp(fmean(logs) + side) for side in (-half, 0, half))
        step = f"{1e3 * fmean(own for own, _ in counted):.0f} ms"
        found.put((step, f"{center:.3f} ({low:.3f}–{high:.3f})"))
    torch.distributed.destroy_process_group()


def endless(make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Pass after pass."""
    while True:
        yield from make()


def sharded(data: Any, collate: Any, rank: int) -> Callable[[], Iterator[Any]]:
    """Each rank loads its own batches, by accelerate."""
    loader = DataLoader(data, BATCH // RANKS, shuffle=True, collate_fn=collate)
    prepared = prepare_data_loader(loader, num_processes=RANKS, process_index=rank)
    return lambda: iter(prepared)


def dispatched(data: Any, collate: Any) -> Callable[[], Iterator[Any]]:
    """Rank 0 loads all of them, as a plan lets it."""
    divided: Any = Collate(collate, BATCH, RANKS, sys.exit)  # type: ignore[arg-type]
    loader = DataLoader(data, BATCH, shuffle=True, collate_fn=divided)
    prepared = prepare_data_loader(
        loader, "cpu", 1, 0, split_batches=True, put_on_device=True, dispatch_batches=True
    )
    dispatch = Dispatch(SimpleNamespace())  # type: ignore[arg-type]
    return lambda: dispatch._iterate(None, prepared)


if __name__ == "__main__":
    main()
