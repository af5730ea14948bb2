"""The life of a line on our side: its process, the thread that moves the bytes, and its end."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from cputune.errors import CannotError, Unreachable
from cputune.host.children import end, in_session
from cputune.log import log
from cputune.nodes.agent import BEAT_SECONDS, GREETING, SILENCE_SECONDS
from cputune.nodes.named import Node
from cputune.nodes.reach import Reach
from cputune.nodes.sent import far_command, sent_line
from cputune.nodes.wire import Wire

CLOSE_SECONDS = 25.0
"""An agent whose children the kernel holds waits for them for 20 s."""

LAST_WORDS_SECONDS = 1.0
MOST_SAID_BYTES = 8192

_LOG = log.getChild("nodes")


class Relay:
    """A line that is being carried; ``cputune.nodes.line.Line`` is what is asked through it.

    What begins with an underscore below ``_start`` is done by its thread, but for ``_do`` and what
    is said through it.
    """

    def __init__(self, reach: Reach, node: Node, pythons: tuple[str, ...] = ()) -> None:
        self.node, self.reach = node, reach
        self.hello: Mapping[str, Any] = {}
        self.lost: str | None = None
        self.on_lost: Callable[[str], None] = lambda reason: None
        self.until_seconds = math.inf
        """On the clock of time.monotonic: no answer is waited for after it."""
        self._hint: str | None = None
        self._greeted = threading.Event()
        self._closing = False
        self._changed = threading.Condition()
        self._asked: dict[int, Future[Any]] = {}
        self._numbers = 0
        self._outbox: deque[Callable[[], None]] = deque()
        self._listeners: dict[int, Callable[[], socket.socket]] = {}
        self._exits: dict[int, int] = {}
        self._said = bytearray()
        self._start(reach.argv(node, far_command(pythons)), {**os.environ, **reach.variables})

    def greet(self, seconds: float) -> None:
        """Wait for the first word. Raises Unreachable; the line is closed then."""
        if not self._greeted.wait(max(0.0, seconds)):
            words = self._said.decode(errors="replace").split("\n")
            last = next((line.strip()[:200] for line in reversed(words) if line.strip()), "")
            said = f"it gave no answer in {seconds:.3g} s" + (f": {last}" if last else "")
            self._give_up(said, "is it up, and does a firewall stand between?")
        if self.lost is not None:
            self.close()
            raise self._unreachable()
        _LOG.debug("%s answers by %s: %s", self.node.name, self.reach.name, self.hello)

    def close(self) -> None:
        """End all that was started over there, and the line; waits until that is done."""
        self._closing = True
        with contextlib.suppress(CannotError):
            self._do(lambda: None)
        self._thread.join()
        try:
            self._process.wait(CLOSE_SECONDS if self.hello else 0.1)
        except subprocess.TimeoutExpired:
            end(lambda: in_session(self._process.pid), grace_seconds=0)
            self._process.wait()

    def _start(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> None:
        their_input, our_output = os.pipe()
        our_input, their_output = os.pipe()
        our_errors, their_errors = os.pipe()
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=their_input,
                stdout=their_output,
                stderr=their_errors,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C is ours to hear; nobody asks for a password
            )
        except OSError as error:
            for descriptor in (our_output, our_input, our_errors):
                os.close(descriptor)
            what = f"cannot start {argv[0]}: {error.strerror or error}"
            raise CannotError(what, hint="--through names another way to hosts") from error
        finally:
            for descriptor in (their_input, their_output, their_errors):
                os.close(descriptor)
        self._errors = our_errors
        self._wake_read, self._wake_write = os.pipe()
        self._wire = Wire(our_input, our_output, self._hear, GREETING)
        self._wire.watch(our_errors, self._hear_errors)
        self._wire.watch(self._wake_read, self._woken)
        self._wire.push(sent_line())
        name = f"line to {self.node.name}"
        self._thread = threading.Thread(target=self._relay, name=name, daemon=True)
        self._thread.start()

    def _relay(self) -> None:
        beat = 0.0
        reason = None
        while self._wire.ended is None and not self._closing:
            now = time.monotonic()
            if self.hello and now >= beat:
                self._wire.say({"beat": 1})
                beat = now + BEAT_SECONDS
            if self.hello and now - self._wire.heard_seconds > SILENCE_SECONDS:
                reason = f"it gave no sign of life for {SILENCE_SECONDS:.0f} s"
                break
            self._wire.turn(max(0.0, beat - now) if self.hello else BEAT_SECONDS)
        self._over(reason)

    def _over(self, reason: str | None) -> None:
        """The line has ended: say why, wake whoever waits, let go of every descriptor."""
        if reason is None and not self._closing:
            reason, self._hint = self._why()
        with self._changed:
            self.lost = self.lost or reason or "the line was closed"
            asked, self._asked = self._asked, {}
            os.close(self._wake_write)
            self._changed.notify_all()
        for future in asked.values():
            future.set_exception(self._unreachable())
        self._wire.close()
        os.close(self._wake_read)
        os.close(self._errors)
        self._greeted.set()
        if not self._closing:
            _LOG.info("%s is lost: %s", self.node.name, self.lost)
            self.on_lost(self.lost)

    def _why(self) -> tuple[str, str | None]:
        """Why the line ended by itself: the last words of what carried it, explained."""
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(LAST_WORDS_SECONDS)
        os.set_blocking(self._errors, False)
        with contextlib.suppress(OSError):
            self._said += os.read(self._errors, MOST_SAID_BYTES)
        if self._wire.garbled:
            noise = bytes(self._wire.noise[:60]).decode(errors="replace")
            said = f"{self._wire.ended}: {noise!r}" if noise else str(self._wire.ended)
            return said, f"{self.reach.name} {self.node.name} true should print nothing"
        said = self._said.decode(errors="replace")
        return self.reach.explain(self.node, code, said)

    def _hear(self, message: dict[str, Any]) -> None:
        if not self.hello:
            self.hello = message
            self._greeted.set()
        elif "id" in message:
            with self._changed:
                future = self._asked.pop(message["id"], None)
            if future is None:
                return
            if "error" in message:
                future.set_exception(error_of(message["error"]))
            else:
                future.set_result(message["answer"])
        elif "exit" in message:
            with self._changed:
                self._exits[message["exit"]] = message["status"]
                self._changed.notify_all()
        elif "listener" in message:
            self._connected(message["listener"], message["c"])

    def _connected(self, listener: int, channel: int) -> None:
        try:
            self._wire.open(channel, self._listeners[listener]())
        except (OSError, KeyError):  # nobody listens here any more
            self._wire.say({"c": channel, "gone": 1})

    def _hear_errors(self) -> None:
        data = os.read(self._errors, MOST_SAID_BYTES)
        self._said = (self._said + data)[-MOST_SAID_BYTES:]
        if not data:
            self._wire.selector.unregister(self._errors)

    def _woken(self) -> None:
        os.read(self._wake_read, 4096)
        while self._outbox:
            self._outbox.popleft()()

    def _do(self, what: Callable[[], None]) -> None:
        """Have this done by the thread of the line. Raises Unreachable where it has ended."""
        with self._changed:
            if self.lost is not None:
                raise self._unreachable()
            self._outbox.append(what)
            os.write(self._wake_write, b"x")

    def _send(self, ask: dict[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._changed:
            self._numbers += 1
            number = self._numbers
            self._asked[number] = future
        self._do(lambda: self._wire.say({"id": number, **ask}))
        return future

    def _result(self, future: Future[Any], seconds: float) -> Any:
        left = min(seconds, self.until_seconds - time.monotonic())
        wait((future,), None if left == math.inf else max(0.0, left))
        if not future.done():
            raise Unreachable(self.node.name, "it was asked and gave no answer in time")
        return future.result()

    def _channel(self) -> tuple[socket.socket, int]:
        ours, relayed = socket.socketpair()
        with self._changed:
            self._numbers += 1
            number = 2 * self._numbers  # those of the other side are odd
        self._do(lambda: self._wire.open(number, relayed))
        return ours, number

    def _give_up(self, reason: str, hint: str) -> None:
        with self._changed:
            if self.lost is None:
                self.lost, self._hint, self._closing = reason, hint, True
                os.write(self._wake_write, b"x")

    def _unreachable(self) -> Unreachable:
        return Unreachable(self.node.name, self.lost or "it was closed", hint=self._hint)


def error_of(told: Sequence[Any]) -> Exception:
    number, text = told
    return OSError(number, text) if number else RuntimeError(text)
