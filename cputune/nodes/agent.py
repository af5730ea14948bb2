"""The far side of a line: a process on another host that answers, starts, relays and cleans up.

Five files are sent as one, over the standard input of a python that is there (3.7 or later):
``channel``, ``wire``, ``answers``, ``children`` and this one, without their imports of each other
(see ``sent_source``). Then messages go both ways (``cputune.nodes.wire``):

    {"id": 1, "do": "read", "path": "/proc/stat"}  {"id": 1, "answer": "cpu  …"}
    {"id": 2, "do": "read", "path": "/none"}       {"id": 2, "error": [2, "No such file…"]}
    {"beat": 1}                                    {"beat": 1}
                                                   {"exit": 4711, "status": 0}
                                                   {"listener": 3, "c": 5}   a connection

Nothing stays behind: where its standard input ends, a signal tells it to end, or nothing was heard
for SILENCE_SECONDS (the near side speaks every BEAT_SECONDS), it ends all that it has started
and removes its folder. So whatever happens to the near side or to the network between, SIGKILL and
a cut cable included, it is over in seconds.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import platform
import shutil
import signal
import socket
import sys
import tempfile
import time
from typing import Any

from cputune.nodes.answers import ANSWERS, interpreter
from cputune.nodes.children import Children, cpu_seconds
from cputune.nodes.wire import Wire

SILENCE_SECONDS = 20.0
BEAT_SECONDS = 5.0
GREETING = b"cputune-agent/1 "
"""What the first line begins with; a login shell may have written anything before."""

GRACE_SECONDS = 1.0
"""For children that end in order when their channel is closed, as the supervisors of ranks do."""

FOLDER_PREFIX = "cputune-agent-"
STALE_SECONDS = 60.0
"""A folder without an owner is removed when it is so old: a new one is owned before that."""


class Agent:
    """All of it; ``serve`` returns when it is over."""

    def __init__(self, read: int, write: int, folder: str) -> None:
        self.folder = folder
        self.wire = Wire(read, write, self._obey)
        self._children = Children(self.wire.say, folder)
        self._next_channel = 1
        self._stopped = False
        wake_read, wake_write = os.pipe()
        for descriptor in (wake_read, wake_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake_write)
        self._wake = wake_read
        self.wire.watch(wake_read, self._woken)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)

    def serve(self) -> None:
        """Answer until the near side is gone, then leave nothing behind."""
        hello = {"folder": self.folder, "pid": os.getpid(), "machine": platform.machine()}
        hello.update(interpreter(), name=platform.node())
        self.wire.push(GREETING + json.dumps(hello).encode() + b"\n")
        try:
            while self.wire.ended is None and not self._stopped:
                quiet = time.monotonic() - self.wire.heard_seconds
                if quiet > SILENCE_SECONDS:
                    break
                self.wire.turn(min(SILENCE_SECONDS - quiet, self._children.next_look_seconds()))
                self._children.look()
        finally:
            self.wire.close()
            self._children.end_all(GRACE_SECONDS)

    def _woken(self) -> None:
        os.read(self._wake, 4096)

    def _stop(self, *_: Any) -> None:
        self._stopped = True

    def _obey(self, message: dict[str, Any]) -> None:
        if "beat" in message:
            self.wire.say({"beat": 1})
            return
        number = message.pop("id")
        try:
            later = self._begun(number, message)
        except OSError as error:
            self._refuse(number, error)
        else:
            if not later:
                self._answer(number, self._done(message))

    def _done(self, ask: dict[str, Any]) -> dict[str, Any]:
        """The answer to one question, or its error, as it is sent."""
        ask = dict(ask)
        name = ask.pop("do")
        try:
            if name == "many":
                return {"answer": [self._done(one) for one in ask["asks"]]}
            do = getattr(self, "_do_" + name, None) or ANSWERS[name]
            return {"answer": do(**ask)}
        except OSError as error:
            return {"error": [error.errno or 0, error.strerror or str(error)]}
        except Exception as error:  # a question that nobody understands; the line goes on
            return {"error": [0, f"{type(error).__name__}: {error}"]}

    def _begun(self, number: int, ask: dict[str, Any]) -> bool:
        """Whether this is a question whose answer comes when a child has ended."""
        if ask["do"] != "run":
            return False
        self._children.run(ask, lambda told: self._answer(number, {"answer": told}))
        return True

    def _refuse(self, number: int, error: OSError) -> None:
        self._answer(number, {"error": [error.errno or 0, error.strerror or str(error)]})

    def _answer(self, number: int, said: dict[str, Any]) -> None:
        self.wire.say({"id": number, **said})

    def _do_spawn(self, channel: int | None = None, **ask: Any) -> Any:
        if channel is None:
            return self._children.spawn(ask, None)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                told = self._children.spawn(ask, theirs.fileno())
            except OSError:
                ours.close()
                raise
        self.wire.open(channel, ours)
        return told

    def _do_listen(self, path: str, listener: int) -> str:
        """Listen on a Unix socket; each connection is a channel, announced before its bytes."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        place = os.path.join(self.folder, path)
        server.bind(place)
        server.listen(256)
        server.setblocking(False)

        def accept() -> None:
            try:
                connection = server.accept()[0]
            except OSError:
                return
            number, self._next_channel = self._next_channel, self._next_channel + 2
            self.wire.say({"listener": listener, "c": number})
            self.wire.open(number, connection)

        self.wire.watch(server, accept)
        return place

    def _do_signal(self, pid: int, number: int, below: bool, itself: bool) -> None:
        if below:
            self._children.tell(pid, number, itself)
        elif itself:
            os.kill(pid, number)

    def _do_cpu_seconds(self, pid: int) -> float:
        return cpu_seconds(pid)

    def _do_kill(self, pid: int) -> None:
        self._children.kill(pid)

    def _do_put(self, files: dict[str, str]) -> str:
        """Write files (base64) below the folder."""
        for name, data in files.items():
            place = os.path.join(self.folder, name)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as file:
                file.write(base64.b64decode(data))
        return self.folder

    def _do_tail(self, path: str, most: int) -> str:
        """The end of a file that a child writes."""
        with open(os.path.join(self.folder, path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            return file.read(most).decode("utf-8", "replace")


def own_folder() -> tuple[str, int]:
    """A new folder of ours, and the descriptor of the lock that says that its owner lives."""
    top = tempfile.gettempdir()
    for name in os.listdir(top):
        if name.startswith(FOLDER_PREFIX):
            _remove_if_stale(os.path.join(top, name))
    folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
    lock = os.open(os.path.join(folder, "lock"), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, lock


def _remove_if_stale(folder: str) -> None:
    """Remove a folder of ours whose agent was killed before it could."""
    try:
        told = os.lstat(folder)
        if told.st_uid != os.getuid() or time.time() - told.st_mtime < STALE_SECONDS:
            return
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # its owner lives
        return
    finally:
        os.close(lock)


def main() -> None:
    """Serve on standard input and output; children get neither."""
    folder, lock = own_folder()
    try:
        Agent(0, 1, folder).serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
