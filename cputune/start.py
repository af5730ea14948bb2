"""Where the console script begins: before anything is imported that takes time.

Nothing has begun while Python imports, so an interrupt then ends the program at once,
without the traceback of whatever module was being read.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130
"""128 + SIGINT, as shells count; ``cputune.errors.Interrupted.exit_code``."""


def main() -> None:
    """Run the command line. Ends the process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
        from cputune.cli import main as run

        signal.signal(signal.SIGINT, signal.default_int_handler)
    else:  # nohup, or a shell's background job: interrupts are ignored, and stay so
        from cputune.cli import main as run
    run()
