"""The tuner's end of the connection to the ranks: collects messages, sleeps while it waits."""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import secrets
import selectors
import socket
from pathlib import Path
from typing import Any

from cputune.inside.messages import TCP, TurnMessage, is_message, keep_alive, short_path

LONGEST_LINE = 4 << 20
"""Messages of ranks have some kB; a longer line is not one."""

_CUT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


class Line:
    """One connection: who sends (``source``), and what was read but is not a whole line yet.

    ``source``: None until a rank has sent its number. If a token is required, the first line has
    to be the token; else the connection is closed. ``cut``: the kernel has given it up.
    """

    def __init__(self, source: object = None, token: str | None = None) -> None:
        self.source = source
        self.is_rank = source is None
        self.cut = False
        self._token = token
        self._rest = b""
        self._messages: list[dict[str, Any]] = []

    def read(self, connection: socket.socket) -> bool:
        """Read what is there. True if the other end has closed, or sends what cannot be read."""
        try:
            data = connection.recv(1 << 16)
        except OSError as error:
            self.cut = error.errno in _CUT
            return error.errno not in (None, errno.EAGAIN)  # None: it is read with a time limit
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            return True
        if lines and self._token is not None:
            if not hmac.compare_digest(lines.pop(0), self._token.encode()):
                return True
            self._token = None
        for text in lines:
            try:
                message = json.loads(text)
                if not is_message(message):
                    return True
                if message["event"] == "hello" and self.is_rank:
                    self.source = int(message["rank"])
            except (ValueError, KeyError, TypeError, RecursionError):
                return True
            self._messages.append(message)
        return not data

    def take(self) -> list[dict[str, Any]]:
        """The messages that were read and not taken yet."""
        messages, self._messages = self._messages, []
        return messages


class Inbox:
    """A socket that ranks connect to, and other line sockets read in the same wait.

    Attributes:
        path: of the Unix socket, for ranks of this machine.
        address: what ranks connect to: the path, or ``tcp:TOKEN:PORT:HOST`` if an address of
            this machine is given, for ranks of other hosts too.
        lost: ranks of other hosts whose connection the kernel has given up.
    """

    def __init__(self, folder: Path, *, host: str | None = None) -> None:
        self._selector = selectors.DefaultSelector()
        self.lost: list[int] = []
        self.address = self.path = str(folder / "socket")
        self._token = secrets.token_hex(16)
        self._servers = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)]
        with short_path(self.path) as short:
            self._servers[0].bind(short)
        if host is not None:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            server = socket.create_server((host, 0), family=family)
            self._servers.append(server)
            self.address = f"{TCP}{self._token}:{server.getsockname()[1]}:{host}"
        for server in self._servers:
            server.listen(256)
            server.setblocking(False)
            self._selector.register(server, selectors.EVENT_READ, None)

    def add(self, connection: socket.socket, line: Line) -> None:
        """Read this socket too."""
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, line)

    def wait(self, seconds: float | None) -> list[tuple[Any, dict[str, Any] | None]]:
        """Block until a message arrives, for at most ``seconds``; (source, message) in order.

        The source of a rank is its number. A message of None: the line was closed.
        """
        received: list[tuple[Any, dict[str, Any] | None]] = []
        for key, _ in self._selector.select(seconds):
            connection: socket.socket = key.fileobj  # type: ignore[assignment]
            if key.data is None:
                self._accept(connection)
                continue
            line: Line = key.data
            closed = line.read(connection)
            for message in line.take():
                received.append((line.source, message))
            if closed:
                self._selector.unregister(connection)
                received.append((line.source, None))
                if line.is_rank:
                    connection.close()
                if line.cut and isinstance(line.source, int):
                    self.lost.append(line.source)
        return received

    def _accept(self, server: socket.socket) -> None:
        """Accept a connection; one from the network has to begin with the token."""
        with contextlib.suppress(OSError):
            connection, _ = server.accept()
            far = server.family != socket.AF_UNIX
            if far:
                keep_alive(connection)
            self.add(connection, Line(token=self._token if far else None))

    def _lines(self) -> list[tuple[socket.socket, Line]]:
        keys = list(self._selector.get_map().values())
        return [(key.fileobj, key.data) for key in keys if key.data and key.data.is_rank]  # type: ignore[misc]

    def send_to_ranks(self, message: TurnMessage) -> None:
        """Send a message to every rank that has connected, if it still is."""
        text = json.dumps(message).encode() + b"\n"
        for connection, line in self._lines():
            if line.source is not None:
                with contextlib.suppress(OSError):
                    connection.sendall(text)

    def close(self) -> None:
        """Close every line of a rank, queued ones too, and remove the socket."""
        for connection, _ in self._lines():
            connection.close()
        self._selector.close()
        for server in self._servers:
            server.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)
