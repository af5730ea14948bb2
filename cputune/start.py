"""Where the console script begins: before anything is imported that takes time.

Nothing has begun while Python imports, so an interrupt then ends the program at once,
without the traceback of whatever module was being read.
"""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130
"""128 + SIGINT, as shells count; ``cputune.errors.Interrupted.exit_code``."""

_STOPPING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGXCPU")
"""The signals that mean "stop, and keep what there is": keys, terminals, schedulers (USR1 is
Slurm's warning of ``--signal``, XCPU the kernel's that the CPU time is up). Windows has some."""


def main() -> None:
    """Run the command line. Ends the process."""
    numbers = [getattr(signal, name) for name in _STOPPING if hasattr(signal, name)]
    # What is ignored from the start stays so (nohup, a shell's background job).
    usual = (signal.SIG_DFL, signal.default_int_handler)
    ours = [number for number in numbers if signal.getsignal(number) in usual]
    for number in ours:
        signal.signal(number, lambda number, frame: os._exit(INTERRUPTED))
    _put_python_first()
    from cputune.cli import main as run

    run(ours)


def _put_python_first() -> None:
    """Take folders of PYTHONPATH last where a file in them would stand for one of Python's own.

    A random.py there ends whoever imports tempfile: the doctor has to say so.
    """
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        try:
            folder = os.path.abspath(entry)  # fails where the working folder was removed
            names = {name.partition(".")[0] for name in os.listdir(folder)} if entry else set()
        except OSError:
            continue
        if folder in sys.path and names & sys.stdlib_module_names:
            sys.path.remove(folder)
            sys.path.append(folder)
            for name in names & sys.modules.keys():  # a .pth file of the environment imported it
                if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
                    del sys.modules[name]
