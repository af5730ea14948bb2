"""The other end of the line: gathers messages of many ranks, and blocks while it waits."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
from pathlib import Path
from typing import Any

from cputune.inside.messages import Turn, is_message

LONGEST_LINE = 4 << 20


class Post:
    """A Unix socket that ranks connect to, and other line sockets read in the same wait."""

    def __init__(self, folder: Path) -> None:
        self._selector = selectors.DefaultSelector()
        self.path = str(folder / "socket")
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self.path)
        self._server.listen(256)
        self._server.setblocking(False)
        self._selector.register(self._server, selectors.EVENT_READ, None)

    def add(self, connection: socket.socket, source: Any) -> None:
        """Read this socket too; its events carry ``source``."""
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, _Line(source))

    def remove(self, connection: socket.socket) -> None:
        """Read this socket no more; it stays open."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)

    def wait(self, seconds: float | None) -> list[tuple[Any, dict[str, Any] | None]]:
        """Block until somebody speaks, for ``seconds`` at most; (source, message) in order.

        The source of a rank is its number. A message of None: the line was closed.
        """
        heard: list[tuple[Any, dict[str, Any] | None]] = []
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                with contextlib.suppress(OSError):
                    connection, _ = self._server.accept()
                    self.add(connection, None)
                continue
            line: _Line = key.data
            connection = key.fileobj  # type: ignore[assignment]
            closed = line.read(connection)
            heard += [(line.source, message) for message in line.take()]
            if closed:
                self._selector.unregister(connection)
                if line.is_rank:
                    connection.close()
                heard.append((line.source, None))
        return heard

    def tell_ranks(self, message: Turn) -> None:
        """Say something to every rank that has spoken; one that is gone does not hear it."""
        line = json.dumps(message).encode() + b"\n"
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Line) and key.data.is_rank:
                with contextlib.suppress(OSError):
                    key.fileobj.sendall(line)  # type: ignore[union-attr]

    def drop_ranks(self) -> None:
        """Forget every rank, those in the queue too: the next trial starts with a clean line."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Line) and key.data.is_rank:
                self._selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
        while True:
            try:
                self._server.accept()[0].close()
            except OSError:
                return

    def close(self) -> None:
        """Close every line and remove the socket."""
        self.drop_ranks()
        self._selector.close()
        self._server.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)


class _Line:
    """One connection: what was read and is not yet a whole line, and who speaks."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.is_rank = source is None
        self._rest = b""
        self._messages: list[dict[str, Any]] = []

    def read(self, connection: socket.socket) -> bool:
        """Read what is there. True where the other end has closed, or talks nonsense."""
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            return True
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
        messages, self._messages = self._messages, []
        return messages
