"""Every check there is, in the order in which findings of equal severity are shown.

What makes training fail or lie comes first, then the launch and the limits, then the
machine: a person mends from the top.
"""

from __future__ import annotations

from cputune.doctor import binding, container, launch, libraries, precision, shape, system, threads
from cputune.doctor.finding import Check

CHECKS: tuple[Check, ...] = (
    *launch.CHECKS,
    *container.CHECKS,
    *threads.CHECKS,
    *binding.CHECKS,
    *precision.CHECKS,
    *libraries.CHECKS,
    *system.CHECKS,
    *shape.CHECKS,
)


def find_check(code: str) -> Check | None:
    """The check with this code."""
    return next((check for check in CHECKS if check.code == code), None)
