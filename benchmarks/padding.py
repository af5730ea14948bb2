"""To which multiple columns of padding are best cut, and what an order by length adds to it.

    python benchmarks/padding.py [--recipe bert-mini-sst2] [--steps 24] [--bf16]

One process, one thread: for the same batches of a recipe with lengths the CPU seconds of forward
and backward passes, padded to the recipe's length, cut to a multiple of 1, 8, 16, 32 and 64, and
the same samples taken in batches of like length, cut to 8. The ways take each batch in turn, so
that what the machine does hits all of them; CPU seconds say less of what others do meanwhile than
wall time. Prints a Markdown table: columns that are left, and how much faster than padded batches,
with the scatter over thirds of the steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import torch
from transformers import default_data_collator

from cputune.inside.applying import trimming as columns
from cputune.inside.applying.order import OfLikeLength, token_lengths
from cputune.inside.train_recipe import SyntheticSamples, build_model
from cputune.plans.workload import load_recipe

WAYS = ("padded", "1", "8", "16", "32", "64", "8, of like length")


def batches(data: Any, order: list[int], size: int) -> list[dict[str, Any]]:
    """The samples in this order, in batches."""
    return [
        default_data_collator([data[at] for at in order[first : first + size]])
        for first in range(0, len(order), size)
    ]


def ways(random: dict[str, Any], alike: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A batch of each way."""
    yield "padded", random
    for way in WAYS[1:]:
        multiple, _, like = way.partition(",")
        columns.MULTIPLE = int(multiple)
        batch = alike if like else random
        yield way, columns.cut(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="bert-mini-sst2")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--bf16", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load_recipe(arguments.recipe).to_json()
    model, name = build_model(recipe)
    size = recipe["global_batch_size"]
    data = SyntheticSamples(recipe, model.config, arguments.steps * size)
    used = token_lengths(data)
    assert isinstance(used, list), used
    drawn = batches(data, list(range(len(data))), size)
    alike = batches(data, list(OfLikeLength(used, size, 0)), size)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    columns: dict[str, list[int]] = {way: [] for way in WAYS}
    for one, other in zip(drawn[:2] + drawn, alike[:2] + alike, strict=True):
        for way, batch in ways(one, other):
            began = time.process_time()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.bf16):
                loss = model(**batch).loss
            loss.backward()
            model.zero_grad()
            seconds[way].append(time.process_time() - began)
            columns[way].append(batch["input_ids"].shape[1])
    print("| cut to | columns left | times as fast as padded |\n|---|---|---|")
    for way in WAYS:
        took, whole = seconds[way][2:], seconds["padded"][2:]
        third = len(took) // 3
        thirds = [sum(whole[k::3][:third]) / sum(took[k::3][:third]) for k in range(3)]
        left = fmean(columns[way][2:]) / recipe["sequence_length"]
        spread = f"{min(thirds):.2f}–{max(thirds):.2f}"
        print(f"| {way} | {left:.0%} | {sum(whole) / sum(took):.2f} ({spread}) |")
    print(f"\n{name}, batches of {size}, {'bf16' if arguments.bf16 else 'fp32'}, one thread.")


if __name__ == "__main__":
    main()
