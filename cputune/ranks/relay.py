"""What ranks on another host report, over the connection that was opened to start them.

``remote/sent/hold.py`` runs on the host. Its ranks connect to a Unix socket there. It numbers their
connections, and writes what they send to its standard output, line by line. Turns for the ranks
come to it over its standard input. So a host needs no way to connect to this machine: no port is
open here, and no firewall or NAT is in between.

======================== ==========================================================
line                     meaning
======================== ==========================================================
``@cputune 3 MESSAGE``   from the connection with number 3; without a message: it has
                         been closed
``@cputune``             the answer to an empty line: the host is there
``3 MESSAGE``            to this connection; without a message: it is closed
(empty)                  the tuner is there
======================== ==========================================================

Here each connection becomes one to the socket of the tuner (``listen.Inbox``), which does not know
where a rank runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import socket
import time
from collections.abc import Callable

from cputune.inside.messages import short_path

# A host that answers no beat for so long is lost; it takes the tuner for gone after as long.
BEAT_SECONDS = 5.0
SILENT_SECONDS = 30.0

MOST_BYTES = 1 << 18  # of one read: more than a pipe holds
FRAME = re.compile(rb"@cputune(?: (\d{1,9}) ?(.*))?", re.DOTALL)


class Connection:
    """A rank's connection to the tuner's socket, with what is not sent yet."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.to_send = bytearray()
        self.received = b""
        self.ends = False


class Relay:
    """Both directions of one host. ``seconds``: how often ``beat`` is to be called."""

    def __init__(
        self,
        output: int,
        give: Callable[[bytes], None],
        path: str,
        selector: selectors.BaseSelector,
        write_aside: Callable[[bytes], None],
        *,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        """Copy between a host and the tuner.

        Args:
            output: the descriptor from which its standard output is read.
            give: writes to its standard input.
            path: of the tuner's socket.
            selector: is asked for the descriptors of this relay; their data is a function.
            write_aside: is given the lines that are no message.
            silent_seconds: after which a host that answers no beat is lost.
        """
        self._output: int | None = output
        self._give, self._path, self._selector = give, path, selector
        self._write_aside = write_aside
        self._silent_seconds = silent_seconds
        self.seconds = min(BEAT_SECONDS, silent_seconds / 6)
        self._rest = b""
        self._connections: dict[int, Connection] = {}
        self._heard_at: float | None = None
        self._beat_at = 0.0
        os.set_blocking(output, False)
        selector.register(output, selectors.EVENT_READ, self._attend_host)

    def beat(self) -> bool:
        """Show the host that we are there. False if it has been silent for too long."""
        now = time.monotonic()
        if now - self._beat_at >= self.seconds:
            self._beat_at = now
            self._give(b"\n")
        return self._heard_at is None or now - self._heard_at < self._silent_seconds

    def drain(self) -> None:
        """Forward what the host has already written."""
        while self._read_host():
            pass

    def close(self) -> None:
        """The host has gone: so have its connections, once what they have sent is sent on."""
        self.drain()
        if self._output is not None:
            self._selector.unregister(self._output)
            os.close(self._output)
            self._output = None
        for connection in list(self._connections.values()):
            connection.ends = True
            self._send(connection)

    def _attend_host(self, events: int) -> None:
        if self._read_host() is False:
            self.close()

    def _read_host(self) -> bool | None:
        """Read and forward. None if nothing is there now, False if nothing ever will be."""
        if self._output is None:
            return False
        try:
            data = os.read(self._output, MOST_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            frame = FRAME.fullmatch(line)
            if frame is None:
                self._write_aside(line + b"\n")
                continue
            self._heard_at = time.monotonic()
            if frame[1] is not None:
                self._forward(int(frame[1]), frame[2])
        return bool(data)

    def _forward(self, number: int, message: bytes) -> None:
        connection = self._connections.get(number)
        if connection is None:
            if not message:
                return
            connection = self._connect(number)
            if connection is None:
                self._give(b"%d \n" % number)
                return
        if message:
            connection.to_send += message + b"\n"
        else:
            connection.ends = True
        self._send(connection)

    def _connect(self, number: int) -> Connection | None:
        """Open a connection to the tuner; None if it does not listen any more."""
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            with short_path(self._path) as short:
                opened.connect(short)
        except OSError:
            opened.close()
            return None
        opened.setblocking(False)
        connection = self._connections[number] = Connection(opened)

        def attend(events: int) -> None:
            if events & selectors.EVENT_READ:
                self._receive(number, connection)
            if events & selectors.EVENT_WRITE and connection.socket.fileno() >= 0:
                self._send(connection)

        self._selector.register(opened, selectors.EVENT_READ, attend)
        return connection

    def _receive(self, number: int, connection: Connection) -> None:
        """Pass turns on to the rank, and the end of its connection."""
        try:
            data = connection.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, connection.received = (connection.received + data).split(b"\n")
        for line in lines:
            self._give(b"%d %s\n" % (number, line))
        if not data:
            self._give(b"%d \n" % number)
            self._drop(connection)

    def _send(self, connection: Connection) -> None:
        """Send what can be sent now; the selector says when more can be."""
        try:
            while connection.to_send:
                sent = connection.socket.send(connection.to_send)
                del connection.to_send[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        if connection.ends and not connection.to_send:
            self._drop(connection)
            return
        events = selectors.EVENT_READ
        if connection.to_send:
            events |= selectors.EVENT_WRITE
        key = self._selector.get_key(connection.socket)
        if key.events != events:
            self._selector.modify(connection.socket, events, key.data)

    def _drop(self, connection: Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()
        for number, one in list(self._connections.items()):
            if one is connection:
                del self._connections[number]
