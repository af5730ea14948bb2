"""Every check there is, in the order in which findings of equal severity are shown.

What makes training fail or lie comes first, then the launch and the limits, then the
machine: a person mends from the top.
"""

from __future__ import annotations

from cputune.doctor import (
    binding,
    collectives,
    container,
    launch,
    libraries,
    missing,
    precision,
    rendezvous,
    shape,
    system,
    threads,
)
from cputune.doctor.finding import Check
from cputune.doctor.versions import VERSION_CHECKS

CHECKS: tuple[Check, ...] = (
    *missing.CHECKS,
    *VERSION_CHECKS,
    *rendezvous.CHECKS,
    *launch.CHECKS,
    *collectives.CHECKS,
    *container.CHECKS,
    *threads.CHECKS,
    *binding.CHECKS,
    *precision.CHECKS,
    *libraries.CHECKS,
    *system.CHECKS,
    *shape.CHECKS,
)


def all_checks() -> tuple[Check, ...]:
    """These, and those that need more than facts: a stack that is asked for, a file, a child."""
    from cputune.doctor.checkfile import FILE_CHECKS
    from cputune.doctor.deep import DEEP_CHECKS
    from cputune.doctor.judge import STACK_CHECKS

    return (*CHECKS, *STACK_CHECKS, *FILE_CHECKS, *DEEP_CHECKS)
