"""Host: the only door to disk, environment, clock and child processes.

Everything that looks at the machine takes a ``Host``, so that a recorded machine
(``RecordedHost``) can stand in for the live one. Paths are those of the machine that is
looked at: ``/proc/cpuinfo`` is read below the root of the recording.
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
from cputune.host.interpreter import console_script, module_file
from cputune.host.live import LiveHost
from cputune.host.recorded import RecordedHost as RecordedHost  # public
from cputune.host.surroundings import Around, Place, Stray, Surroundings
