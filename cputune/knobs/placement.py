"""The knob ``placement``: which of the allowed cores a CPU quota is spent on."""

from __future__ import annotations

from cputune.knobs.record import Effect, Knob, one_of

SPREAD, PACKED = "spread", "packed"

PLACEMENT = Knob(
    name="placement",
    summary="where a CPU quota is spent: spread over all sockets, or packed on few of them",
    today=SPREAD,
    parse=one_of("placement", (SPREAD, PACKED)),
    effect=Effect(
        own=0.1,
        label=lambda plan, at: at.sockets_of_all,
        source="assumed: a second socket brings memory bandwidth, and a way between the ranks "
        "that is longer",
    ),
)
