"""The ranks of a script that ended well leave together, so that none hangs or aborts at its end."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
from collections.abc import Sequence

from cputune.inside.applying.hooking import Hook, Original
from cputune.inside.applying.run_script import run_script

GROUPS = "torch.distributed.distributed_c10d"

# Process groups that were destroyed.
_kept: list[object] = []

_ended_well = False


class Ending:
    """Keeps process groups until the process ends, and ends it before they are freed."""

    name = "ending"

    def hooks(self) -> list[Hook]:
        """The function of torch that ends process groups."""
        atexit.register(leave)  # the first to be registered is the last to be called
        return [(GROUPS, "destroy_process_group", keep_process_groups)]

    def report(self) -> dict[str, str]:
        """Nothing of a plan."""
        return {}


def run_together(argv: Sequence[str]) -> None:
    """Run a script, or ``-m`` and a module, as ``python`` would; its ranks end together."""
    try:
        run_script(argv)
    except SystemExit as exit_:
        if exit_.code in (None, 0):
            end_together()
        raise
    end_together()


def end_together() -> None:
    """Wait for the other ranks of a script that ended well, and destroy its process group.

    Otherwise gloo's threads may still use what the interpreter frees as it ends, and the process
    dies with SIGABRT, exit status 134 (pytorch/pytorch#179291). A rank that failed does not come
    here: it ends the others' wait with an error.
    """
    global _ended_well
    _ended_well = True
    guard = getattr(sys.modules.get("cputune_applied"), "parts", {}).get("guard")
    if guard is not None:
        guard.finish()
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    with contextlib.suppress(Exception):
        distributed.barrier()
    with contextlib.suppress(Exception):
        distributed.destroy_process_group()


def keep_process_groups(original: Original, *args: object, **kwargs: object) -> None:
    """Let no process group be freed before the process ends.

    DistributedDataParallel keeps its group after ``destroy_process_group`` and frees it with the
    interpreter's lock; the group waits for gloo's threads, and a thread that frees its last tensors
    waits for that lock, for ever (pytorch/pytorch#56297, torch 2.13).
    """
    for group in list(sys.modules[GROUPS]._world.pg_map):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        _kept.append(group)
    original(*args, **kwargs)


def leave() -> None:
    """The last step of Python's exit: end before it frees what gloo's threads use."""
    if _ended_well and _kept:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        ctypes.CDLL(None).fflush(None)
        os._exit(0)
