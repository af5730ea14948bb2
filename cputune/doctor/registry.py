"""Every check there is, in the order in which findings of equal severity are shown.

What makes training fail or lie comes first, then the launch and the limits, then the
machine: a person mends from the top.
"""

from __future__ import annotations

from cputune.doctor.checks import (
    affinity,
    binders,
    collectives,
    launchers,
    libraries,
    limits,
    missing,
    precision,
    rendezvous,
    resources,
    shape,
    system,
    threads,
    versions,
)
from cputune.doctor.finding import Check

CHECKS: tuple[Check, ...] = (
    *missing.CHECKS,
    *versions.CHECKS,
    *rendezvous.CHECKS,
    *launchers.CHECKS,
    *collectives.CHECKS,
    *limits.CHECKS,
    *resources.CHECKS,
    *threads.CHECKS,
    *affinity.CHECKS,
    *binders.CHECKS,
    *precision.CHECKS,
    *libraries.CHECKS,
    *system.CHECKS,
    *shape.CHECKS,
)


def all_checks() -> tuple[Check, ...]:
    """These, and those that need more than facts: a stack that is asked for, a file, a child."""
    from cputune.doctor.checkfile import FILE_CHECKS
    from cputune.doctor.checks import children, stack_answers

    return (*CHECKS, *stack_answers.CHECKS, *FILE_CHECKS, *children.CHECKS)
