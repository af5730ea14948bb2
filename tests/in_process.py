"""Commands that a test runs: ``cputune WORDS`` in its own process, any other in a child."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """The exit code, and all that was written to either stream."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


def ran(argv: list[Any] | tuple[Any, ...], **more: Any) -> subprocess.CompletedProcess[str]:
    """A child that has ended, and all that it wrote; after four minutes it is killed."""
    return subprocess.run(argv, capture_output=True, text=True, **{"timeout": 250, **more})
