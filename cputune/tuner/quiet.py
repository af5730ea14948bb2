"""What is said and done on a machine that is not quiet.

Beside a busy neighbour even ratios that are measured side by side are false, for plans suffer
differently: one thread of two ran at 0.62 of both on a quiet machine, and at 1.73 beside one
neighbour. So there is no claim to make, only a neighbour to name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cputune.errors import NotMeasurableError
from cputune.tuner.events import Disturbed, OnEvent

AGAIN_SECONDS = 4.0
QUIET_LOOKS = 2
"""So many looks after each other have to find nobody: a neighbour may take a breath."""

Look = Callable[[], Sequence[str]]
"""Who computes beside us just now, in words; nobody where it is quiet."""


def wait_until_quiet(
    look: Look,
    on_event: OnEvent,
    *,
    most_seconds: float | None,
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> None:
    """Say who computes beside us; wait until nobody does, where ``most_seconds`` are given.

    Raises NotMeasurableError where that was in vain.
    """
    neighbours = tuple(look())
    if not neighbours:
        return
    on_event(Disturbed(neighbours=neighbours, waiting=most_seconds is not None))
    if most_seconds is None:
        return
    until, quiet = clock() + most_seconds, 0
    while quiet < QUIET_LOOKS:
        if clock() >= until:
            raise not_measurable(f"it was not quiet in {most_seconds:.0f} s", neighbours)
        pause(AGAIN_SECONDS)
        seen = tuple(look())
        quiet = 0 if seen else quiet + 1
        neighbours = seen or neighbours


def not_measurable(why: str, neighbours: Sequence[str]) -> NotMeasurableError:
    """No factor and no recommendation: why, who computes here, and what to do."""
    return NotMeasurableError(
        f"not measurable today: {why}",
        details="\n".join(f"busy now: {name}" for name in neighbours) or None,
        hint="end what computes here, or wait for it: --wait-quiet 30m; the trials are kept "
        "with the study, --resume goes on with those that were quiet",
    )
