"""Runs a script as ``python SCRIPT`` would, and says how it ended."""

from __future__ import annotations

import json
import os
import sys
import traceback
from types import TracebackType

from cputune.inside import CPUS_VARIABLE, carry
from cputune.inside.hooks import install
from cputune.inside.speak import LOCAL_RANK_NAMES, number_from


def run_script(argv: list[str]) -> int:
    """Run ``argv[0]`` as ``__main__`` with the rest as its arguments; its exit status.

    An exception is told with its name, and its traceback goes to stderr, as without us.
    """
    shares = os.environ.get(CPUS_VARIABLE)
    if shares:
        os.sched_setaffinity(0, json.loads(shares)[number_from(LOCAL_RANK_NAMES)])
    meter = install()
    meter.speaker.say({"event": "note", "text": "started"})
    try:
        carry.run(argv)
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
    ours = (__file__, carry.__file__)
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in ours
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
