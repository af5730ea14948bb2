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

from cputune.inside.messages import TCP, TurnMessage, is_message, keep_alive

LONGEST_LINE = 4 << 20


class Post:
    """A socket that ranks connect to, and other line sockets read in the same wait.

    Attributes:
        path: of the Unix socket, for ranks of this machine.
        address: what ranks are told to connect to: the path, or where an address of this
            machine is given ``tcp:TOKEN:PORT:HOST``, for ranks of other hosts too.
        lost: ranks of other hosts whose connection the kernel has given up, and why.
    """

    def __init__(self, folder: Path, *, host: str | None = None) -> None:
        self._selector = selectors.DefaultSelector()
        self.lost: dict[int, str] = {}
        self.path = str(folder / "socket")
        self.address = self.path
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(self.path)
        self._servers = [server]
        self._token = secrets.token_hex(16)
        if host is not None:
            server = socket.create_server((host, 0), family=_family(host))
            self._servers.append(server)
            self.address = f"{TCP}{self._token}:{server.getsockname()[1]}:{host}"
        for server in self._servers:
            server.listen(256)
            server.setblocking(False)
            self._selector.register(server, selectors.EVENT_READ, None)

    def add(self, connection: socket.socket, source: object) -> None:
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
            connection: socket.socket = key.fileobj  # type: ignore[assignment]
            if key.data is None:
                self._accept(connection)
                continue
            line: _Line = key.data
            closed = line.read(connection)
            heard += [(line.source, message) for message in line.take()]
            if closed:
                self._selector.unregister(connection)
                if line.is_rank:
                    connection.close()
                    if isinstance(line.source, int) and line.trouble is not None:
                        self.lost[line.source] = line.trouble
                heard.append((line.source, None))
        return heard

    def _accept(self, server: socket.socket) -> None:
        """Accept a connection; one from the network has to begin with the token."""
        with contextlib.suppress(OSError):
            connection, _ = server.accept()
            connection.setblocking(False)
            token = None if server.family == socket.AF_UNIX else self._token
            if token is not None:
                keep_alive(connection)
            line = _Line(None, token)
            self._selector.register(connection, selectors.EVENT_READ, line)

    def tell_ranks(self, message: TurnMessage) -> None:
        """Send a message to every rank that has spoken; one that is gone does not get it."""
        line = json.dumps(message).encode() + b"\n"
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Line) and isinstance(key.data.source, int):
                with contextlib.suppress(OSError):
                    key.fileobj.sendall(line)  # type: ignore[union-attr]

    def drop_ranks(self) -> None:
        """Forget every rank, queued connections too, so that the next trial starts with none."""
        self.lost.clear()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Line) and key.data.is_rank:
                self._selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
        for server in self._servers:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

    def close(self) -> None:
        """Close every line and remove the socket."""
        self.drop_ranks()
        self._selector.close()
        for server in self._servers:
            server.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)


_CUT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class _Line:
    """One connection: who speaks, and what was read that is not a whole line yet.

    Where a token is wanted, the first line has to be the token; else the connection is closed.
    """

    def __init__(self, source: object, token: str | None = None) -> None:
        self.source = source
        self._token = token
        self.is_rank = source is None
        self.trouble: str | None = None
        self._rest = b""
        self._messages: list[dict[str, Any]] = []

    def read(self, connection: socket.socket) -> bool:
        """Read what is there. True where the other end has closed, or sends what cannot be read."""
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _CUT:
                self.trouble = "the connection was cut"
            return True
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
        messages, self._messages = self._messages, []
        return messages
