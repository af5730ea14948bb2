"""The tuner's end of the connection to the ranks: collects messages, sleeps while it waits."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
from pathlib import Path
from typing import Any

from cputune.inside.messages import TurnMessage, is_message, short_path

# Messages of ranks have some kB; a longer line is not one.
LONGEST_LINE = 4 << 20


class Line:
    """One connection: who sends (``source``), and what was read but is not a whole line yet.

    ``source``: None until a rank has sent its number.
    """

    def __init__(self, source: object = None) -> None:
        self.source = source
        self.is_rank = source is None
        self._rest = b""
        self._messages: list[dict[str, Any]] = []

    def read(self, connection: socket.socket) -> bool:
        """Read what is there. True if the other end has closed, or sends what cannot be read."""
        try:
            data = connection.recv(1 << 16)
        except OSError as error:
            return error.errno not in (None, errno.EAGAIN)  # None: it is read with a time limit
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            return True
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

    ``address`` is the path of the Unix socket. Ranks of other hosts come over a ``relay``.
    """

    def __init__(self, folder: Path) -> None:
        self._selector = selectors.DefaultSelector()
        self.address = str(folder / "socket")
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_path(self.address) as short:
            self._server.bind(short)
        self._server.listen(256)
        self._server.setblocking(False)
        self._selector.register(self._server, selectors.EVENT_READ, None)

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
        return received

    def _accept(self, server: socket.socket) -> None:
        """Accept a connection."""
        with contextlib.suppress(OSError):
            self.add(server.accept()[0], Line())

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
        self._server.close()
        with contextlib.suppress(OSError):
            os.unlink(self.address)
