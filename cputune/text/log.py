"""The logger of cputune: silent until whoever uses it as a library gives it a handler.

``cputune.probing`` tells what is not known, ``cputune.host`` which files are written and which
children are asked, ``cputune.ranks`` how many processes start, ``cputune.events`` what ``on_event``
is given. The words and the output of a training script are never logged: they may hold secrets.
"""

from __future__ import annotations

import logging

log = logging.getLogger("cputune")
log.addHandler(logging.NullHandler())
