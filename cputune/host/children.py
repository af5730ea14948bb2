"""Ending a child process and everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Any


def end_group(child: subprocess.Popen[Any], *, grace_seconds: float = 2.0) -> None:
    """End a child and everything it started: INT, then TERM, then KILL on its group.

    The child must lead its own process group (``start_new_session=True``).
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        try:
            child.wait(timeout=grace_seconds)
        except subprocess.TimeoutExpired:
            continue
        break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # grandchildren that outlived their parent
