"""``docs/knobs.md``: every knob, in the words of its record."""

from __future__ import annotations

import math

from cputune.plans.knobs import KNOBS
from cputune.plans.knobs.batches import OF_LIKE_LENGTH
from cputune.plans.knobs.record import KEPT, Knob
from cputune.plans.values import KnobValue
from cputune.records.options import TuneOptions, options_in

_HEAD = """# Every knob of the tuner

This page lists what `cputune tune` can vary. Made from the knobs themselves by `make doc`; do not
edit it here.

- **Baseline** is the value in a plain `python train.py`. A knob keeps it if it is not varied
  (`--knobs`); `--fix NAME=VALUE` sets another.
- **Keeps** is what of the training stays the same when the knob varies: the same numbers; the
  same mathematics, rounded or added in another order; the same distribution, with other random
  draws; or other numbers. `--keep numbers`, `--keep mathematics` and `--keep distribution` leave
  out what keeps less.
- **Believed** is how much two values are expected to differ before a measurement (one standard
  deviation). The first trials go where the most is expected. Measurements soon outweigh it.
"""


_NO_KNOBS = """
These were measured and are not knobs, or only with other settings
([readings](../benchmarks/readings.md#what-memory-costs-by-allocator)):

- Huge pages are a value of `malloc` if the kernel offers them: 1.15 times as fast (1.08–1.22) as
  glibc's malloc ([side by side](../benchmarks/readings.md#what-knobs-were-worth-on-one-machine)).
- jemalloc is a value of `allocator`, with settings that give one page fault a step; with those of
  Intel's launcher it has 46,674.
- mimalloc is not a knob: 15,269 page faults a step with the settings that were tried.
- Kept gradients (`zero_grad(set_to_none=False)`) are not a knob: as many page faults, 100 MiB
  more memory.
- torch.compile is not a knob: 0.87 times as fast (0.83–0.91) after a minute of compiling; the whole
  model compiled under autocast is 0.98 times as fast (0.96–1.01) after 45 s. A
  script that asks for it (`--torch_compile True`) is tuned as it is; steps that compile do not
  count. On two cores with AMX `--torch_compile` in the Trainer is 0.92 to 0.93 times as fast, after
  a first step of 43 s, and the whole model compiled under autocast 1.13 times (1.09–1.17). Why
  these differ is not known.
- Matmuls of fp32 weights in bf16 inside oneDNN
  (`torch.backends.mkldnn.matmul.fp32_precision = "bf16"`) are not a knob: on two Zen 4 cores
  (avx512_bf16, no AMX) 0.66 times as fast as autocast (0.65–0.68). oneDNN 3.12 accepts the setting
  there and takes its fp32 kernel, and the losses of 207 steps are those of fp32. Together with
  autocast it changes nothing: 1.01 times (0.99–1.04). On two cores with AMX: 0.93 times as fast as
  autocast, and 1.5 times as fast as fp32.
- Compiling only the chains between the matmuls (dropout, residual sum and LayerNorm; GELU) is
  not a knob: 0.93 times as fast (0.87–1.00) on two Zen 3 cores in fp32, and each layer compiled
  as a whole 0.92 times (0.82–1.01; `benchmarks/fusions.py`).
- Weights stored as (inputs, outputs) are not a knob: 0.95 times as fast (0.90–1.00) there.
- A fused clipping of gradients is not a knob: norms take 0.4 to 2.5 % of a step.
"""


def knobs_page() -> str:
    """The page: a table of all knobs, then where each belief comes from."""
    table = ["| knob | what it is | baseline | keeps | believed |", "|---|---|---|---|---|"]
    table += [
        f"| `{knob.name}` | {knob.summary} | {_value(knob.baseline)} "
        f"| {KEPT[knob.keeps]} | {_believed(knob)} |"
        for knob in KNOBS
    ]
    asked = [f"- {line}" for line in only_if_asked()]
    sources = [f"- `{knob.name}`: {knob.effect.source}." for knob in KNOBS]
    only = "A default `cputune tune` does not try these. Each needs its option:"
    beliefs = "Sources of the believed effects:"
    lines = [_HEAD, *table, "", only, "", *asked, "", beliefs, "", *sources, _NO_KNOBS]
    return "\n".join(lines)


def only_if_asked() -> list[str]:
    """Values that are left out of a default search, with the options that bring them in."""
    left_out = [f"`{out.what}`: `{out.option}`" for out in (OF_LIKE_LENGTH,)]
    allowed = [
        f"`{text.flag}`: {text.help}"
        for name, _, default, text in options_in(TuneOptions)
        if name.startswith("allow_") and default is False
    ]
    return left_out + allowed


def _believed(knob: Knob) -> str:
    return f"± {100 * (math.exp(knob.effect.size) - 1):.0f} %"


def _value(value: KnobValue) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
