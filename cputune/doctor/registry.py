"""All checks, in the order in which findings of equal severity are shown.

Versions come first, which make training fail, then the launch and the limits, then the
machine: people begin at the top. The checks of a theme have the order of its file.
"""

from __future__ import annotations

from cputune.doctor.checks import (
    launch,
    libraries,
    limits,
    machine,
    precision,
    surroundings,
    threads,
    versions,
)
from cputune.doctor.finding import Check

_THEMES = (versions, launch, surroundings, limits, threads, precision, libraries, machine)

CHECKS: tuple[Check, ...] = tuple(check for theme in _THEMES for check in theme.CHECKS)


def all_checks() -> tuple[Check, ...]:
    """These, and those that need more than facts: a named stack, a file, a child, other hosts."""
    from cputune.doctor import deep, hosts, named_stack, symptoms, typed_launch
    from cputune.doctor.checkfile import FILE_CHECKS

    launches = (FILE_CHECKS, typed_launch.CHECKS)
    needing_more = (named_stack.CHECKS, *launches, deep.CHECKS, symptoms.CHECKS, hosts.CHECKS)
    return (*CHECKS, *(check for checks in needing_more for check in checks))
