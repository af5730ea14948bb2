"""The rank's end of the line: JSON lines over a socket, opened when first needed."""

from __future__ import annotations

import json
import os
import socket

from cputune.inside import SOCKET_VARIABLE, TURNS_VARIABLE
from cputune.inside.messages import Hello, RankMessage, Turn

RANK_NAMES = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
LOCAL_RANK_NAMES = (
    "LOCAL_RANK",
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
)


TCP = "tcp:"
"""How an address begins that ranks of other hosts can reach: ``tcp:TOKEN:PORT:HOST``."""

CONNECT_SECONDS = 20.0

SILENT_SECONDS = 20
"""A listener that cannot be reached for so long is gone, and its ranks with it."""


def number_from(names: tuple[str, ...]) -> int:
    """The first of these variables that holds a number, 0 where none does.

    The order is accelerate's: a RANK in the environment beats what MPI says.
    """
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return 0


class Speaker:
    """Says what happens in this rank to whoever listens; to nobody where nobody does."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path if path is not None else os.environ.get(SOCKET_VARIABLE, "")
        self._socket: socket.socket | None = None
        self._pid = 0
        self._in_turns = os.environ.get(TURNS_VARIABLE) == "1"
        self._steps_left = 0

    def say(self, message: RankMessage) -> None:
        """Send one message. A listener that went away ends this process: it is not wanted."""
        if not self.path:
            return
        try:
            if self._socket is None or self._pid != os.getpid():
                self._connect()
            assert self._socket is not None
            self._socket.sendall(_line(message))
        except OSError:
            os._exit(75)

    def await_turn(self) -> None:
        """Where steps are taken in turns, wait until this rank may take another.

        Called between two steps, so that a rank which is stopped there holds up nobody and
        nothing of its pause is in any step. A listener that went away ends this process.
        """
        if not (self.path and self._in_turns):
            return
        while self._steps_left == 0:
            self._steps_left = self._hear_turn()
        self._steps_left -= 1

    def _hear_turn(self) -> int:
        heard = b""
        try:
            while not heard.endswith(b"\n"):
                assert self._socket is not None, "a rank speaks before it waits"
                more = self._socket.recv(256)
                if not more:
                    os._exit(75)
                heard += more
        except OSError:
            os._exit(75)
        turns: list[Turn] = [json.loads(line) for line in heard.splitlines()]
        return sum(turn["steps"] for turn in turns)

    def close(self) -> None:
        """Hang up; the next message opens the line again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        connection = connected(self.path)
        self._socket, self._pid = connection, os.getpid()
        hello: Hello = {
            "event": "hello",
            "rank": number_from(RANK_NAMES),
            "local_rank": number_from(LOCAL_RANK_NAMES),
            "pid": os.getpid(),
        }
        connection.sendall(_line(hello))


def connected(address: str) -> socket.socket:
    """A line to a listener: a Unix socket's path, or ``tcp:TOKEN:PORT:HOST``. Raises OSError."""
    if not address.startswith(TCP):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(address)
        return connection
    token, port, host = address[len(TCP) :].split(":", 2)
    connection = socket.create_connection((host, int(port)), CONNECT_SECONDS)
    connection.settimeout(None)
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_SECONDS // 2),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_SECONDS // 4),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000),
    ):
        connection.setsockopt(level, option, value)
    connection.sendall(token.encode() + b"\n")
    return connection


def _line(message: RankMessage) -> bytes:
    return json.dumps(message).encode() + b"\n"
