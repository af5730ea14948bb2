"""``docs/knobs.md``: every knob, in the words of its record."""

from __future__ import annotations

import math

from cputune.plans.knobs import KNOBS
from cputune.plans.knobs.batches import OF_LIKE_LENGTH
from cputune.plans.knobs.record import KEPT, Knob, KnobValue
from cputune.records.options import TuneOptions, options_in

_HEAD = """# Every knob of the tuner

Made from the knobs themselves by `make doc`; do not edit it here. **Today** is the value that a
knob has in a plain `python train.py`, and keeps where it is not varied (`--knobs`); `--fix
NAME=VALUE` holds it at another. **Believed** is how much two of its values are taken to differ
before anything was measured (one standard deviation), so that the first trials are spent where
most is to gain; measurements soon outweigh it. **Keeps** is what of the training stays the same
while the knob is varied: the same numbers; the same mathematics, rounded or added up otherwise; the
same distribution, drawn otherwise; or other numbers. `--keep numbers`, `--keep mathematics` and
`--keep distribution` leave out what keeps less.
"""


_NO_KNOBS = """
What was read of memory, and what of it is no knob
([the figures](measuring.md#what-memory-costs-by-allocator)):

- Huge pages are a value of `malloc` where the kernel gives them: 1.15 times as fast (1.08–1.22) as
  glibc's malloc as it is ([side by side](measuring.md#what-the-knobs-were-worth-on-one-machine)).
- jemalloc is a value of `allocator`, with settings by which it faults once a step; with those of
  Intel's launcher it faults 46,674 times.
- mimalloc is none: 15,269 page faults a step with the settings that were tried.
- Gradients whose memory is kept (`zero_grad(set_to_none=False)`; the embedding's alone are 62.5 MB
  of zeros each step) are none: as many page faults, 100 MiB more, 1.02 times less CPU time where a
  tenth is told apart. What the zeros cost is page faults, which `malloc` and `allocator` take away.
- torch.compile is none: 0.87 times as fast (0.83–0.91) after a minute of compiling. A script that
  asks for it itself (`--torch_compile True`) is tuned as it is: steps that compile do not count.
- A fused clipping of gradients is none: norms take 0.4 to 2.5 % of a step, the most it could bring.
"""


def knobs_page() -> str:
    """The page: a table of all knobs, then where each belief comes from."""
    table = ["| knob | what it is | today | keeps | believed |", "|---|---|---|---|---|"]
    table += [
        f"| `{knob.name}` | {knob.summary} | {_value(knob.today)} "
        f"| {KEPT[knob.keeps]} | {_believed(knob)} |"
        for knob in KNOBS
    ]
    asked = [f"- {line}" for line in only_if_asked()]
    sources = [f"- `{knob.name}`: {knob.effect.source}." for knob in KNOBS]
    only = "A default `cputune tune` does not try these; each has an option that does:"
    beliefs = "Where the beliefs come from:"
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
    return f"± {100 * (math.exp(knob.effect.own) - 1):.0f} %"


def _value(value: KnobValue) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
