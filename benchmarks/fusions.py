"""Is a step faster if chains of small operations are compiled, or weights lie otherwise in memory?

    python benchmarks/fusions.py [--rounds 8] [--steps 4] [--only pointwise,transposed]
                                 [--against autocast]

One process with a model for each variant, the four-layer BERT of ``recipes/bert-mini.toml`` with
AdamW (fused) and sixteen batches of random tokens, again and again. The models take some steps in
turn, in another order in every round, and each round gives one ratio to the model as it is, or to
the variant ``--against``. Every model draws the same dropout at the same step. Prints a Markdown
row for each variant: how many times as fast it is, with the 95 % interval of the mean over rounds,
the seconds of its first step, the mean loss of its last sixteen steps, and by how much its loss
differs from that of the model it is compared with, as a mean over all steps.

- ``pointwise``: dropout, the residual sum and LayerNorm after each of the two output projections
  are compiled as one chain (``torch.compile``), and GELU as another; matmuls and attention stay.
- ``layer``: each layer is compiled as a whole.
- ``transposed``: the weights of all linear maps are stored as (inputs, outputs), so that the
  matmuls of the forward pass read them along their rows.
- ``bf16_matmul``: fp32 matmuls are computed in bf16 inside oneDNN
  (``torch.backends.mkldnn.matmul.fp32_precision``); ``autocast``: bf16 by autocast; ``both``: what
  autocast leaves in fp32 is multiplied in bf16 too; ``compiled_autocast``: the whole model compiled
  (``torch.compile``), under autocast. They are left out if the CPU has no bf16 instructions, unless
  they are named.

Needs a quiet machine, and a C++ compiler for what is compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertForQuestionAnswering

from cputune.plans.workload import Workload

BATCH, LENGTH = 8, 128
WARMUP = 6
BATCHES = 16
BF16 = ("bf16_matmul", "autocast", "both", "compiled_autocast")


class Variant:
    """A model of its own, with its optimizer, and what is switched on while it takes a step."""

    def __init__(self, name: str, change: Callable[[nn.Module], Any] | None = None) -> None:
        torch.manual_seed(0)
        recipe = Workload.from_recipe("bert-mini").recipe
        assert recipe is not None
        options = {key: value for key, value in recipe.model.items() if key != "model_type"}
        self.name = name
        self.model = BertForQuestionAnswering(BertConfig(**options)).train()
        if change is not None:
            change(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-5, fused=True)
        self.around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        self.losses: list[float] = []

    def step(self) -> float:
        """Train one batch; returns the seconds."""
        draws = torch.Generator().manual_seed(len(self.losses) % BATCHES)
        tokens = torch.randint(1, 30000, (BATCH, LENGTH), generator=draws)
        marks = torch.randint(LENGTH, (BATCH,), generator=draws)
        torch.manual_seed(len(self.losses))
        begun = time.perf_counter()
        with self.around():
            loss = self.model(tokens, start_positions=marks, end_positions=marks).loss
        with switched_matmul(self.name):
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        took = time.perf_counter() - begun
        self.losses.append(float(loss.detach()))
        return took


@contextlib.contextmanager
def switched_matmul(name: str) -> Iterator[None]:
    """Let oneDNN multiply fp32 matrices in bf16, if this is the variant for it."""
    if name not in ("bf16_matmul", "both"):
        yield
        return
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"


class Output(nn.Module):
    """BertSelfOutput and BertOutput: the projection, then one compiled chain."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.dense, self.norm, self.rate = of.dense, of.LayerNorm, of.dropout.p
        self.chain = torch.compile(self._chain, dynamic=False)

    def _chain(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        kept = functional.dropout(hidden, self.rate, training=True) + residual
        return functional.layer_norm(
            kept, self.norm.normalized_shape, self.norm.weight, self.norm.bias, self.norm.eps
        )

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.chain(self.dense(hidden), residual)
        return result


def pointwise(model: Any) -> None:
    """Compile what stands between the matmuls of each layer."""
    for layer in model.bert.encoder.layer:
        layer.attention.output = Output(layer.attention.output)
        layer.output = Output(layer.output)
        layer.intermediate.intermediate_act_fn.compile(dynamic=False)


def whole_layers(model: Any) -> None:
    """Compile each layer."""
    for layer in model.bert.encoder.layer:
        layer.compile(dynamic=False)


def transposed(model: nn.Module) -> None:
    """Store the weight of each linear map as (inputs, outputs)."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.t().contiguous().t()


def whole_model(model: nn.Module) -> None:
    """Compile the model."""
    model.compile(dynamic=False)


@contextlib.contextmanager
def bf16_as(name: str) -> Iterator[None]:
    """The bf16 of one of the variants."""
    with switched_matmul(name):
        if name == "bf16_matmul":
            yield
        else:
            with torch.autocast("cpu", torch.bfloat16):
                yield


def variants(only: list[str], *, has_bf16: bool) -> list[Variant]:
    """The model as it is, and the variants that are asked for."""
    changes: dict[str, Callable[[nn.Module], Any] | None] = {
        "pointwise": pointwise,
        "layer": whole_layers,
        "transposed": transposed,
        "bf16_matmul": None,
        "autocast": None,
        "both": None,
        "compiled_autocast": whole_model,
    }
    chosen = only or [name for name in changes if has_bf16 or name not in BF16]
    made = [Variant("as it is")]
    for name in chosen:
        made.append(Variant(name, changes[name]))
        if name in BF16:
            made[-1].around = functools.partial(bf16_as, name)
    return made


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", default="")
    parser.add_argument("--against", default="as it is")
    options = parser.parse_args()
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii")
    has_bf16 = "avx512_bf16" in flags or "amx_bf16" in flags
    everybody = variants([name for name in options.only.split(",") if name], has_bf16=has_bf16)
    by_name = {one.name: one for one in everybody}
    if options.against not in by_name:
        parser.error(f"--against {options.against}: not among {', '.join(by_name)}")
    first = {}
    for one in everybody:
        first[one.name] = one.step()
        for _ in range(WARMUP):
            one.step()
    others = [one for one in everybody if one.name != options.against]
    ratios: dict[str, list[float]] = {one.name: [] for one in others}
    order = random.Random(1)
    for _ in range(options.rounds):
        seconds = {}
        for one in order.sample(everybody, len(everybody)):
            one.step()
            seconds[one.name] = statistics.median(one.step() for _ in range(options.steps))
        for name, of in ratios.items():
            of.append(seconds[options.against] / seconds[name])
    base = by_name[options.against]
    print(
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, {len(base.losses)} steps, "
        f"{base.name}: loss {statistics.fmean(base.losses[-BATCHES:]):.4f}"
    )
    print("| variant | times as fast | first step s | loss | differs by |\n|---|---|---|---|---|")
    for one in others:
        of = ratios[one.name]
        mean = statistics.fmean(of)
        half = 2.0 * statistics.stdev(of) / len(of) ** 0.5 if len(of) > 1 else float("nan")
        differs = statistics.fmean(
            abs(mine - theirs) for mine, theirs in zip(one.losses, base.losses, strict=True)
        )
        print(
            f"| {one.name} | {mean:.3f} ({mean - half:.3f}-{mean + half:.3f}) "
            f"| {first[one.name]:.1f} | {statistics.fmean(one.losses[-BATCHES:]):.4f} "
            f"| {differs:.4f} |"
        )


if __name__ == "__main__":
    main()
