"""What the doctor looks for, a file for each theme.

Among findings of equal severity versions come first, then the launch and the limits, then the
machine. The checks of a theme have the order of its file.
"""

from itertools import chain

from cputune.doctor.checks import (
    launch,
    libraries,
    limits,
    machine,
    packages,
    precision,
    restraints,
    settings,
    surroundings,
    threads,
    versions,
)
from cputune.doctor.finding import Check

_THEMES = (
    versions,
    packages,
    launch,
    surroundings,
    limits,
    restraints,
    threads,
    settings,
    precision,
    libraries,
    machine,
)

CHECKS: tuple[Check, ...] = tuple(chain.from_iterable(theme.CHECKS for theme in _THEMES))
