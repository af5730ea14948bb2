"""Messages and channels on one pair of descriptors: the same code on both sides of a line.

A message is a JSON object on a line. A channel is a stream of bytes between two sockets, one on
each side; its bytes travel in messages, and each direction can be closed by itself, as with a
socket. What does not fit the other side's pipe waits here, in memory, up to a limit.

This file is sent to other hosts (see ``cputune.nodes.agent``): Python 3.7, the standard
library, and nothing of ours.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import socket
import time
import zlib
from collections.abc import Callable
from typing import Any

from cputune.nodes.channel import READ_AT_ONCE, Channel

LONGEST_LINE = 64 << 20
"""Bytes of one message, packed or not: the trees of /sys of 4096 CPUs are 20 MiB."""

PACKED_FROM = 1 << 15
"""Bytes from which a message is compressed."""

CROWDED = 1 << 20
"""Bytes that wait for the other side before no more is read from channels."""


class Wire:
    """One side of a line. ``turn`` moves what can be moved; nothing else here waits.

    ``ended`` says why nothing can be said or heard any more, and is None until then.
    ``heard_seconds`` is when the other side last spoke, on the clock of time.monotonic. Lines
    before the first that begins with ``greeting`` are noise of a login shell: kept in ``noise``.
    ``garbled`` is whether it ended because of what the other side said.
    """

    def __init__(
        self,
        read: int,
        write: int,
        on_message: Callable[[dict[str, Any]], None],
        greeting: bytes = b"",
    ) -> None:
        self.selector = selectors.DefaultSelector()
        self.ended: str | None = None
        self.garbled = False
        self.heard_seconds = time.monotonic()
        self.noise = bytearray()
        self._read, self._write = read, write
        self._on_message = on_message
        self._greeting = greeting
        self._rest = bytearray()
        self._waiting = bytearray()
        self._writing = False
        self._channels: dict[int, Channel] = {}
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self.watch(read, self._hear)

    def watch(self, source: Any, on_ready: Callable[[], None]) -> None:
        """Call ``on_ready`` in ``turn`` whenever the source (a descriptor) can be read."""
        self.selector.register(source, selectors.EVENT_READ, lambda events: on_ready())

    def turn(self, seconds: float) -> None:
        """Wait until something can be moved, for ``seconds`` at most, and move it."""
        for channel in list(self._channels.values()):
            channel.choose(len(self._waiting) < CROWDED)
        for key, events in self.selector.select(max(0.0, seconds)):
            key.data(events)

    def say(self, message: dict[str, Any]) -> None:
        """Send a message, as soon as there is room for it."""
        line = json.dumps(message).encode()
        if len(line) >= PACKED_FROM and "b" not in message:
            packed = base64.b64encode(zlib.compress(line, 1)).decode()
            line = json.dumps({"z": packed}).encode()
        self.push(line + b"\n")

    def push(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._waiting += data
        self._flush()

    def open(self, number: int, end: socket.socket) -> None:
        """Relay this socket as a channel; the other side opens the same number."""
        self._channels[number] = Channel(self, number, end)

    def close(self) -> None:
        """Close every channel and both descriptors."""
        for channel in list(self._channels.values()):
            channel.drop()
        self.selector.close()
        for descriptor in {self._read, self._write}:
            os.close(descriptor)

    def forget(self, number: int) -> None:
        """A channel that has closed."""
        self._channels.pop(number, None)

    def _flush(self, events: int = 0) -> None:
        while self._waiting and self.ended is None:
            try:
                sent = os.write(self._write, self._waiting[:READ_AT_ONCE])
            except BlockingIOError:
                break
            except OSError:
                # Nobody reads any more. What was said before may still be heard: reading ends it.
                self._waiting.clear()
                break
            del self._waiting[:sent]
        wanted = bool(self._waiting)
        if wanted == self._writing:
            return
        # Where both directions are one socket its descriptors still differ, so both can be watched.
        if wanted:
            self.selector.register(self._write, selectors.EVENT_WRITE, self._flush)
        else:
            self.selector.unregister(self._write)
        self._writing = wanted

    def _hear(self) -> None:
        try:
            data = os.read(self._read, READ_AT_ONCE)
        except BlockingIOError:
            return
        except OSError as error:
            self.ended = error.strerror
            return
        if not data:
            self.ended = "it was closed"
            return
        self.heard_seconds = time.monotonic()
        if b"\n" not in data:
            self._rest += data
        else:
            *lines, rest = data.split(b"\n")
            lines[0] = bytes(self._rest) + lines[0]
            self._rest = bytearray(rest)
            for line in lines:
                if self.ended is None:
                    self._take(line)
        if len(self._rest) > LONGEST_LINE:
            self._refuse(f"a message is longer than {LONGEST_LINE >> 20} MiB")

    def _take(self, line: bytes) -> None:
        if self._greeting:
            at = line.find(self._greeting)
            if at < 0:
                self.noise += line + b"\n"
                if len(self.noise) > PACKED_FROM:
                    self._refuse("it says something else")
                return
            line, self._greeting = line[at + len(self._greeting) :], b""
        try:
            message = json.loads(line)
            if "z" in message:
                message = json.loads(_unpacked(base64.b64decode(message["z"])))
            if not isinstance(message, dict):
                raise ValueError("no object")
            self._deliver(message)
        except (ValueError, TypeError, KeyError, RecursionError, zlib.error):
            start = line[:60].decode("ascii", "replace")
            self._refuse(f"it says what is no message: {start!r}")

    def _refuse(self, why: str) -> None:
        self.ended, self.garbled = why, True

    def _deliver(self, message: dict[str, Any]) -> None:
        if "c" not in message or "listener" in message:
            self._on_message(message)
            return
        channel = self._channels.get(message["c"])
        if channel is None:  # it was given up while this was on its way
            return
        if "b" in message:
            channel.take(base64.b64decode(message["b"]))
        elif "end" in message:
            channel.end()
        else:
            channel.drop()


def _unpacked(data: bytes) -> bytes:
    """What was compressed. Raises ValueError where it would be longer than a message may be."""
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(data, LONGEST_LINE)
    if unpacker.unconsumed_tail:
        raise ValueError("too long")
    return text
