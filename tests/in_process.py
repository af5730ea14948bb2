"""``cputune WORDS`` in the process of a test (the fixture ``cputune``): its end, its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Ended(NamedTuple):
    """The exit code, and all that was written to either stream."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]
