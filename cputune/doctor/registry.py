"""Every check of the doctor."""

from __future__ import annotations

from itertools import chain

from cputune.doctor.checks import CHECKS
from cputune.doctor.finding import Check


def all_checks() -> tuple[Check, ...]:
    """Checks of facts first; then those of a named stack, a file, a child, other hosts."""
    from cputune.doctor import (
        deep,
        hosts,
        measured_work,
        named_stack,
        package_index,
        rehearsed_launch,
        running_job,
        script_calls,
        symptoms,
        typed_launch,
    )
    from cputune.doctor.checkfile import FILE_CHECKS

    launches = (FILE_CHECKS, typed_launch.CHECKS, script_calls.CHECKS, rehearsed_launch.CHECKS)
    needing_more = (
        named_stack.CHECKS,
        package_index.CHECKS,
        *launches,
        deep.CHECKS,
        measured_work.CHECKS,
        running_job.CHECKS,
        symptoms.CHECKS,
        hosts.CHECKS,
    )
    return tuple(chain(CHECKS, *needing_more))
