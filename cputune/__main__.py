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


HELP = os.path.join(os.path.dirname(__file__), "cli", "help.txt")
"""What ``cputune --help`` prints, made by ``make doc``: click alone takes four times as long to
import as Python takes to start."""


def _shows_help(words: list[str]) -> bool:
    """Print the help where nothing else is asked for; whether it was printed."""
    if words not in ([], ["-h"], ["--help"]) or "_CPUTUNE_COMPLETE" in os.environ:
        return False
    try:
        with open(HELP, encoding="utf-8") as file:
            text = file.read()
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):  # a closed or full stream: said as everywhere
        return False
    return True


def _find_own_modules_first() -> None:
    """Look on PYTHONPATH last, in this process alone: the doctor tells of a logging.py there."""
    named = os.environ.get("PYTHONPATH")
    if named:
        early = {os.path.abspath(path) for path in named.split(os.pathsep)}
        sys.path.sort(key=lambda path: os.path.abspath(path) in early)


def main() -> None:
    """Run the command line. Ends the process."""
    if _shows_help(sys.argv[1:]):
        return
    _find_own_modules_first()
    numbers = []
    for name in _STOPPING:
        if hasattr(signal, name):
            numbers.append(getattr(signal, name))
    # What is ignored from the start stays so (nohup, a shell's background job).
    usual = (signal.SIG_DFL, signal.default_int_handler)
    ours = [number for number in numbers if signal.getsignal(number) in usual]
    for number in ours:
        signal.signal(number, lambda number, frame: os._exit(INTERRUPTED))
    from cputune.cli import main as run

    run(ours)


if __name__ == "__main__":
    main()
