"""What the rooms of cputune log, as lines on stderr: -v shows what is done, -vv each detail."""

from __future__ import annotations

import logging
import sys

from cputune.log import log
from cputune.visible import visible


class _Beside(logging.Handler):
    """Writes to the stderr of the moment. What a study tells of itself is progress already."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "cputune.events":
            sys.stderr.write(f"{record.name}: {visible(record.getMessage())}\n")


_HANDLER = _Beside()


def hear_log(verbosity: int) -> None:
    """Show what is logged from INFO on (1) or from DEBUG on (2); nothing at 0 and below."""
    log.removeHandler(_HANDLER)
    log.setLevel(logging.NOTSET)
    if verbosity > 0:
        log.setLevel(logging.INFO if verbosity == 1 else logging.DEBUG)
        log.addHandler(_HANDLER)
