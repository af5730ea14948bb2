"""One channel of a line: a socket of ours, whose bytes travel in messages.

This file is sent to other hosts (see ``cputune.nodes.agent``): Python 3.7, the standard
library, and nothing of ours.
"""

from __future__ import annotations

import base64
import selectors
import socket
from typing import Any

READ_AT_ONCE = 1 << 16

MOST_WAITING = 64 << 20
"""Bytes that wait for one channel's reader before the channel is given up."""


class Channel:
    """One socket of ours, and what is still to be written to it."""

    def __init__(self, wire: Any, number: int, end: socket.socket) -> None:
        self._wire, self._number, self._end = wire, number, end
        self._waiting = bytearray()
        self._reading = True
        self._told_end = False
        self._watched = 0
        end.setblocking(False)

    def choose(self, room: bool) -> None:
        """Watch for what can be done now; ``room`` is whether the other side keeps up."""
        wanted = selectors.EVENT_READ if self._reading and room else 0
        wanted |= selectors.EVENT_WRITE if self._waiting else 0
        if wanted == self._watched:
            return
        if not self._watched:
            self._wire.selector.register(self._end, wanted, self._ready)
        elif wanted:
            self._wire.selector.modify(self._end, wanted, self._ready)
        else:
            self._wire.selector.unregister(self._end)
        self._watched = wanted

    def take(self, data: bytes) -> None:
        """Bytes for our socket."""
        self._waiting += data
        self._write()
        if len(self._waiting) > MOST_WAITING:
            self._give_up()

    def end(self) -> None:
        """The other side will send no more."""
        self._told_end = True
        self._write()

    def drop(self) -> None:
        """Close our socket; the channel is gone."""
        if self._watched:
            self._wire.selector.unregister(self._end)
            self._watched = 0
        self._reading = False
        self._end.close()
        self._wire.forget(self._number)

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._write()
        if events & selectors.EVENT_READ and self._reading:
            self._read()

    def _read(self) -> None:
        try:
            data = self._end.recv(READ_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            self._give_up()
            return
        if data:
            self._wire.say({"c": self._number, "b": base64.b64encode(data).decode()})
            return
        self._reading = False
        self._wire.say({"c": self._number, "end": 1})
        self._close_if_done()

    def _write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: self._end.send(self._waiting[:READ_AT_ONCE])]
            if self._told_end:
                self._end.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:
            self._give_up()
            return
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._told_end and not self._reading and not self._waiting:
            self.drop()

    def _give_up(self) -> None:
        self._wire.say({"c": self._number, "gone": 1})
        self.drop()
