"""Every check there is, in the order in which findings of equal severity are shown.

What makes training fail or lie comes first, then the launch and the limits, then the
machine: a person mends from the top.
"""

from __future__ import annotations

from dataclasses import dataclass

from cputune.doctor.checks import (
    affinity,
    allocators,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Checks that people think of together; ``title`` names what they look at."""

    title: str
    checks: tuple[Check, ...]


THEMES: tuple[Theme, ...] = (
    Theme(title="basic facts", checks=missing.CHECKS),
    Theme(title="versions", checks=versions.CHECKS),
    Theme(title="how ranks meet", checks=rendezvous.CHECKS),
    Theme(title="launchers", checks=launchers.CHECKS),
    Theme(title="oneCCL and gloo", checks=collectives.CHECKS),
    Theme(title="CPUs and memory of the container", checks=limits.CHECKS),
    Theme(title="shared memory, files, priority", checks=resources.CHECKS),
    Theme(title="threads", checks=threads.CHECKS),
    Theme(title="binding", checks=affinity.CHECKS),
    Theme(title="binding by launchers", checks=binders.CHECKS),
    Theme(title="precision", checks=precision.CHECKS),
    Theme(title="libraries", checks=libraries.CHECKS),
    Theme(title="allocators", checks=allocators.CHECKS),
    Theme(title="kernel settings and load", checks=system.CHECKS),
    Theme(title="sockets, cores, NUMA nodes", checks=shape.CHECKS),
)

CHECKS: tuple[Check, ...] = tuple(check for theme in THEMES for check in theme.checks)


def all_checks() -> tuple[Check, ...]:
    """These, and those that need more: a stack that is asked for, a file, a child, other hosts."""
    from cputune.doctor.checkfile import FILE_CHECKS
    from cputune.doctor.checks import children, stack_answers
    from cputune.doctor.hosts import registry as hosts

    return (*CHECKS, *stack_answers.CHECKS, *FILE_CHECKS, *children.CHECKS, *hosts.CHECKS)
