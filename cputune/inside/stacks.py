"""A process of a trial writes its Python stack when it gets a signal, so that a hang can be
explained.

The handler is faulthandler's: it works in a process that is stuck in a library, and in its forks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal

# The file in the scratch folder that all processes of a trial append to.
STACK_FILE = "cputune-stacks"
# A signal that no launcher and no library is known to use.
STACK_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 4


def write_stack_on_signal(folder: str) -> None:
    """Install the handler, unless the script or a library has one for this signal."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if signal.getsignal(STACK_SIGNAL) == signal.SIG_DFL:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            file = os.open(os.path.join(folder, STACK_FILE), flags, 0o600)
            faulthandler.register(STACK_SIGNAL, file=file, all_threads=False)
