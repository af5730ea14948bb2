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
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cputune.host import Command, Completed
from cputune.nodes.far_process import FarProcess
from cputune.nodes.named import Node
from cputune.nodes.reach import Reach
from cputune.nodes.relay import Relay, error_of

OPEN_SECONDS = 30.0
ASK_SECONDS = 60.0


class Line(Relay):
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

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        return [one["answer"] if "answer" in one else error_of(one["error"]) for one in told]

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
