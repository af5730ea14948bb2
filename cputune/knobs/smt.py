"""The knob ``smt``: whether the threads of a rank also use the SMT siblings of its cores."""

from __future__ import annotations

from cputune.knobs.record import Effect, Knob, yes_or_no

SMT = Knob(
    name="smt",
    summary="whether the threads of a rank also use the SMT siblings of its cores",
    today=False,
    parse=yes_or_no("smt"),
    effect=Effect(
        own=0.12,
        within={"layout": 0.08},
        label=lambda plan, at: at.on_siblings,
        source="assumed: matrix products fill a core with one thread, so siblings cost or gain "
        "a tenth",
    ),
)
