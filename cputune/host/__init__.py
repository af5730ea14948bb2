"""The only access to disk, environment, clock and child processes.

Code that examines a machine takes a ``Host``, so that a recorded machine (``RecordedHost``) can
replace the live one. Paths are those of the examined machine: of a recording, ``/proc/cpuinfo`` is
read below its root.
"""

from __future__ import annotations

from cputune.host.base import (
    Command,
    Completed,
    Host,
    Package,
    Process,
)
from cputune.host.files import read_document, read_file, write_atomically, write_tree
from cputune.host.interpreter import Interpreter, this_interpreter
from cputune.host.live import LiveHost
from cputune.host.recorded import RecordedHost as RecordedHost  # public
from cputune.host.surroundings import Around, Place, Stray, Surroundings
