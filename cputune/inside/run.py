"""Runs a script as ``python SCRIPT`` would, and says how it ended."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from types import TracebackType

from cputune.inside.force import from_environment
from cputune.inside.hooks import install
from cputune.inside.speak import LOCAL_RANK_NAMES, number_from


def run_script(argv: list[str]) -> int:
    """Run ``argv[0]`` as ``__main__`` with the rest as its arguments; its exit status.

    An exception is told with its name, and its traceback goes to stderr, as without us.
    """
    plan = from_environment()
    if plan is not None and plan.cpus is not None:
        os.sched_setaffinity(0, plan.cpus[number_from(LOCAL_RANK_NAMES)])
    meter = install()
    meter.speaker.say({"event": "note", "text": "started"})
    script = os.path.abspath(argv[0])
    sys.argv = list(argv)
    if not getattr(sys.flags, "safe_path", False):  # 3.11 and later
        sys.path.insert(0, os.path.dirname(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as exit_:
        status = _status(exit_.code)
        if status:
            meter.speaker.say(
                {"event": "error", "kind": "SystemExit", "text": f"exit status {status}"}
            )
            return status
    except KeyboardInterrupt:
        return 130
    except BaseException as error:  # told, then shown: it is the script's own
        meter.speaker.say(
            {"event": "error", "kind": type(error).__name__, "text": str(error)[:2000]}
        )
        traceback.print_exception(type(error), error, _own_part(error.__traceback__))
        return 1
    meter.end()
    return 0


def _own_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script on, without us and runpy before it."""
    while trace is not None and (
        trace.tb_frame.f_code.co_filename == __file__
        or trace.tb_frame.f_globals.get("__name__") == "runpy"
    ):
        trace = trace.tb_next
    return trace


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1
