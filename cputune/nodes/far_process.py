"""A process on another host, held from here."""

from __future__ import annotations

import socket as sockets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cputune.nodes.line import Line


class FarProcess:
    """Its pid, our end of its channel (None without one), and the file with what it writes."""

    def __init__(self, line: Line, *, pid: int, socket: sockets.socket | None, log: str) -> None:
        self.line, self.pid, self.socket, self.log = line, pid, socket, log

    @property
    def returncode(self) -> int | None:
        """As of subprocess: -9 by SIGKILL; None while it lives. Raises Unreachable."""
        return self.line.exit_of(self.pid)

    def wait(self, seconds: float) -> int | None:
        """How it ended; None where it still lives after ``seconds``. Raises Unreachable."""
        return self.line.exit_of(self.pid, seconds)
