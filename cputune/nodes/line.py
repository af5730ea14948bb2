"""Our side of a line: a live agent on another host, asked from any thread.

    with Line.open(find_reach(), Node(name="node2")) as line:
        line.ask("read", path="/proc/loadavg")
        rank = line.spawn(["python3", "train.py"], channel=True)
        rank.socket.recv(100)

One thread for each line moves the bytes. Whatever was started over there is ended when the line is
closed, when it is lost, or when this process is gone in any way (``cputune.nodes.agent``).
"""

from __future__ import annotations

import base64
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
from cputune.host import Command, Completed
from cputune.host.children import end, in_session
from cputune.log import log
from cputune.nodes.agent import BEAT_SECONDS, GREETING, SILENCE_SECONDS
from cputune.nodes.far_process import FarProcess
from cputune.nodes.named import Node
from cputune.nodes.reach import Reach
from cputune.nodes.sent import far_command, sent_line
from cputune.nodes.wire import Wire

OPEN_SECONDS = 30.0
ASK_SECONDS = 60.0
CLOSE_SECONDS = 25.0
"""An agent whose children the kernel holds waits for them for 20 s."""

LAST_WORDS_SECONDS = 1.0
MOST_SAID_BYTES = 8192

_LOG = log.getChild("nodes")


class Line:
    """A host that answers. ``lost`` says why it does no longer; ``on_lost`` is called then once.

    ``folder`` is the agent's own over there, ``python`` the interpreter that runs it.
    """

    @classmethod
    def open(
        cls,
        reach: Reach,
        node: Node,
        *,
        seconds: float = OPEN_SECONDS,
        pythons: tuple[str, ...] = (),
    ) -> Line:
        """Start an agent on a host, and wait for its first word for ``seconds`` at most.

        The first of ``pythons`` that is there runs it (see ``far_command``). Raises Unreachable.
        """
        line = cls(reach, node, pythons)
        line.greet(seconds)
        return line

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

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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

    @property
    def folder(self) -> str:
        """A folder over there that goes when the line goes."""
        return str(self.hello["folder"])

    @property
    def python(self) -> str:
        """The path of the interpreter that runs the agent."""
        return str(self.hello["executable"])

    def ask(self, do: str, *, seconds: float = ASK_SECONDS, **arguments: Any) -> Any:
        """The answer to a question. Raises the OSError of the other side, or Unreachable."""
        return self._result(self._send({"do": do, **arguments}), seconds)

    def many(self, asks: Sequence[Mapping[str, Any]], *, seconds: float = ASK_SECONDS) -> list[Any]:
        """Several answers at once; in the place of one the OSError that it met."""
        told = self.ask("many", asks=[dict(ask) for ask in asks], seconds=seconds)
        return [one["answer"] if "answer" in one else _error(one["error"]) for one in told]

    def run(self, command: Command) -> Completed:
        """Run a child over there to its end. Raises OSError where it cannot be started."""
        most = command.timeout_seconds
        code, out, err, took = self.ask(
            "run",
            argv=list(command.argv),
            env=None if command.environment is None else dict(command.environment),
            cwd=command.cwd,
            timeout=most,
            seconds=math.inf if most is None else most + ASK_SECONDS,
        )
        return Completed(returncode=code, stdout=out, stderr=err, seconds=took)

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        channel: bool = False,
        log: str = "log",
    ) -> FarProcess:
        """Start a process over there, in a session of its own. Raises OSError.

        With ``channel`` it has a socket whose other end is ``FarProcess.socket``; the word
        ``{channel}`` in ``argv`` becomes the number of its descriptor. What it writes goes to the
        file ``log`` in ``folder``.
        """
        ask: dict[str, Any] = {
            "do": "spawn",
            "argv": list(argv),
            "env": None if env is None else dict(env),
            "cwd": cwd,
            "log": log,
        }
        ours: socket.socket | None = None
        if channel:
            ours, number = self._channel()
            ask["channel"] = number
        try:
            told = self._result(self._send(ask), ASK_SECONDS)
        except BaseException:
            if ours is not None:
                ours.close()
            raise
        return FarProcess(self, pid=told["pid"], socket=ours, log=told["log"])

    def listen(
        self,
        path: str,
        on_connect: Callable[[socket.socket], None] | None = None,
        *,
        to: str | None = None,
    ) -> str:
        """Listen on a Unix socket over there; its path, below ``folder`` where it is relative.

        Each connection becomes one to the Unix socket ``to`` of ours, or a socket that
        ``on_connect`` is given, on the thread of the line. Raises OSError.
        """

        def connect() -> socket.socket:
            if to is not None:
                end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                end.connect(to)
                return end
            theirs, end = socket.socketpair()
            if on_connect is not None:
                on_connect(theirs)
            return end

        with self._changed:
            self._numbers += 1
            number = self._numbers
            self._listeners[number] = connect
        return str(self.ask("listen", path=path, listener=number))

    def put(self, files: Mapping[str, bytes]) -> str:
        """Write files below ``folder``, which is returned. Raises OSError."""
        packed = {name: base64.b64encode(data).decode() for name, data in files.items()}
        return str(self.ask("put", files=packed))

    def tail(self, path: str, most_bytes: int = 4096) -> str:
        """The end of a file over there; a relative path is below ``folder``. Raises OSError."""
        return str(self.ask("tail", path=path, most=most_bytes))

    def signal(self, pid: int, number: int, *, below: bool = True, itself: bool = False) -> None:
        """Send a signal to what is below a process over there, and to it."""
        self.ask("signal", pid=pid, number=int(number), below=below, itself=itself)

    def kill(self, pid: int) -> None:
        """End a process over there and all that is below it, at once."""
        self.ask("kill", pid=pid)

    def exit_of(self, pid: int, seconds: float = 0.0) -> int | None:
        """How a process that was spawned has ended; None while it lives. Raises Unreachable."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._exits or self.lost is not None, seconds)
            if pid not in self._exits and self.lost is not None:
                raise self._unreachable()
            return self._exits.get(pid)

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

    # From here on: what the thread of the line does, and how it is told to.

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
                future.set_exception(_error(message["error"]))
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


def _error(told: Sequence[Any]) -> Exception:
    number, text = told
    return OSError(number, text) if number else RuntimeError(text)
