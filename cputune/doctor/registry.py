"""Every check of the doctor."""

from __future__ import annotations

from cputune.doctor.checks import CHECKS
from cputune.doctor.finding import Check


def all_checks() -> tuple[Check, ...]:
    """Checks of facts first; then those of a named stack, a file, a child, other hosts."""
    from cputune.doctor import (
        deep,
        hosts,
        named_stack,
        proof,
        rehearsal,
        running,
        symptoms,
        typed_launch,
    )
    from cputune.doctor.checkfile import FILE_CHECKS

    launches = (FILE_CHECKS, typed_launch.CHECKS, rehearsal.CHECKS)
    needing_more = (
        *(named_stack.CHECKS, *launches, deep.CHECKS, proof.CHECKS, running.CHECKS),
        *(symptoms.CHECKS, hosts.CHECKS),
    )
    return (*CHECKS, *(check for checks in needing_more for check in checks))
