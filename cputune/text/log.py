"""The logger of cputune. It is silent until the application adds a handler.

``cputune.probing`` logs unknown facts, ``cputune.host`` the files written and the child processes
started, ``cputune.ranks`` how many processes start, and ``cputune.events`` what ``on_event`` gets.
The arguments and the output of a training script are never logged, because they may contain
secrets.
"""

from __future__ import annotations

import logging

log = logging.getLogger("cputune")
log.addHandler(logging.NullHandler())
