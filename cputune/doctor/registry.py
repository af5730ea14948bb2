"""Every check there is, in the order in which findings of equal severity are shown.

What makes training fail or lie comes first, then the launch and the limits, then the
machine: a person mends from the top. Within a theme they stand in the order of its file.
"""

from __future__ import annotations

from collections.abc import Iterator

from cputune.doctor.checks import (
    launch,
    libraries,
    limits,
    machine,
    precision,
    threads,
    versions,
)
from cputune.doctor.finding import Check
from cputune.doctor.variables import preloaded, value
from cputune.facts import HostFacts
from cputune.knobs.precision import native_precisions
from cputune.levers import Lever, done_here

_THEMES = (versions, launch, limits, threads, precision, libraries, machine)

CHECKS: tuple[Check, ...] = tuple(check for theme in _THEMES for check in theme.CHECKS)


def all_checks() -> tuple[Check, ...]:
    """These, and those that need more: a stack that is asked for, a file, a child, other hosts."""
    from cputune.doctor import deep, hosts, named_stack, typed_launch
    from cputune.doctor.checkfile import FILE_CHECKS

    needing_more = (named_stack.CHECKS, FILE_CHECKS, typed_launch.CHECKS, deep.CHECKS, hosts.CHECKS)
    return (*CHECKS, *(check for checks in needing_more for check in checks))


def done(facts: HostFacts) -> Iterator[Lever]:
    """What pays, and is set for every launch of this shell."""
    if "bf16" in native_precisions(facts) and value(facts, "ACCELERATE_MIXED_PRECISION") == "bf16":
        yield done_here("bf16-native", "ACCELERATE_MIXED_PRECISION is bf16")
    for path in preloaded(facts):
        if "libtcmalloc" in path and path not in facts.preload_missing:
            yield done_here("allocator-default", f"LD_PRELOAD names {path}")
