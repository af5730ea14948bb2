"""The process that starts ranks, watches over them, and leaves none behind.

It stands between the tuner, which must stay small and may be killed at any moment, and
the ranks. It is a child subreaper (prctl(2)), so that whatever the ranks start stays its
descendant, and it ends them all when it is told to, or when the tuner is gone.

It first imports the modules that it is given; ranks are then forks of it and pay no
import. What must be in the environment when a library is loaded (LD_PRELOAD,
OMP_PROC_BIND, MALLOC_CONF...) is in the supervisor's own, so each such environment needs a
supervisor of its own. A fork is only right while there is no other thread: it says which
threads it has, and the tuner decides.

It speaks the lines of ``cputune.ranks.messages`` on the socket that it is given as a
descriptor. Only the standard library is loaded, until the first ranks are ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator

from cputune.ranks.messages import Answer, RankCommand, Request
from cputune.ranks.ports import held_port
from cputune.ranks.rank_process import fork, spawn
from cputune.ranks.tuner_watch import ended_with_the_tuner, is_gone, leave

TAIL_BYTES = 16 << 10
PR_SET_CHILD_SUBREAPER = 36


class Children:
    """The processes of one trial at a time, and what they write."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._numbers: dict[int, int] = {}
        self._tails: dict[int, bytearray] = {}
        self._pipes: dict[int, int] = {}
        self._mark: tuple[str, str] | None = None
        self._scratch: str | None = None
        self._held: socket.socket | None = None
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wake, self._wake_write = wake_read, wake_write
        self._selector.register(wake_read, selectors.EVENT_READ)
        self._selector.register(control, selectors.EVENT_READ)

    def serve(self) -> bool:
        """Work until the tuner has gone. True where it said goodbye."""
        rest = b""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._control:
                    self._attend(key.fd)
                    continue
                data = self._control.recv(1 << 16)
                if not data:
                    return False
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if not self._obey(json.loads(line)):
                        return True

    def end(self, grace_seconds: float) -> None:
        """End every descendant, and what bears the mark."""
        from cputune.host.children import below, end, marked

        mark = self._mark
        end(
            lambda: below(os.getpid()) + (marked(*mark) if mark else []),
            grace_seconds=grace_seconds,
            pause=self._wait,
        )
        self._reap()
        self._remove_scratch()
        # A killed process with many threads may be reaped later: nobody waits for it now.
        self._numbers.clear()
        for pipe in list(self._pipes):
            while self._drain(pipe):
                pass
            if pipe in self._pipes:
                self._let_go(pipe)

    def _obey(self, request: Request) -> bool:
        """Do what the tuner asks. False where it says goodbye."""
        if request["do"] == "start":
            self._mark = request["mark"]
            self._remove_scratch()
            self._scratch = request["scratch"]
            if self._scratch is not None:
                os.makedirs(self._scratch, mode=0o700, exist_ok=True)
            for number, command in enumerate(request["commands"]):
                self._start(number, command)
            self._hold(None)
        elif request["do"] == "port":
            self._hold(held_port())
            assert self._held is not None
            self.say({"event": "port", "port": int(self._held.getsockname()[1])})
        elif request["do"] == "end":
            self.end(request["grace_seconds"])
            tails = {str(n): tail.decode(errors="replace") for n, tail in self._tails.items()}
            self._tails.clear()
            self.say({"event": "gone", "tails": tails})
        return request["do"] != "goodbye"

    def _hold(self, port: socket.socket | None) -> None:
        if self._held is not None:
            self._held.close()
        self._held = port

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _start(self, number: int, command: RankCommand) -> None:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            if command["fork"]:
                pid = fork(command, write_end, self._forget)
            else:
                pid = spawn(command, write_end)
        except OSError as error:
            os.close(read_end)
            self.say({"event": "exit", "rank": number, "status": 127, "tail": str(error)})
            return
        finally:
            os.close(write_end)
        os.set_blocking(read_end, False)
        self._numbers[pid] = number
        self._tails[number] = bytearray()
        self._pipes[read_end] = number
        self._selector.register(read_end, selectors.EVENT_READ)

    def _forget(self) -> None:
        """In a forked rank: let go of everything that is the supervisor's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._control.close()
        self._hold(None)
        for descriptor in (self._wake, self._wake_write, *self._pipes):
            os.close(descriptor)

    def _wait(self, seconds: float) -> None:
        """Wait, then reap and read: a rank that writes much can only end while it is read."""
        time.sleep(seconds)
        for key, _ in self._selector.select(0):
            if key.fileobj is not self._control:
                self._attend(key.fd)

    def _attend(self, descriptor: int) -> None:
        if descriptor == self._wake:
            with contextlib.suppress(BlockingIOError):  # heard while the ranks were ended
                os.read(self._wake, 4096)
            self._reap()
        elif descriptor in self._pipes:  # else it was read to its end when its rank was reaped
            self._drain(descriptor)

    def _drain(self, pipe: int) -> bool:
        """Read what a rank has written and keep its end. False where there is no more."""
        try:
            data = os.read(pipe, 1 << 18)
        except BlockingIOError:
            return False
        if not data:
            self._let_go(pipe)
            return False
        tail = self._tails[self._pipes[pipe]]
        tail += data
        del tail[:-TAIL_BYTES]
        return True

    def _let_go(self, pipe: int) -> None:
        self._selector.unregister(pipe)
        os.close(pipe)
        del self._pipes[pipe]

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                number = self._numbers.pop(pid, None)
                if number is not None:  # else an orphan of a rank, left to us
                    self._say_exit(number, os.waitstatus_to_exitcode(status))

    def _say_exit(self, number: int, status: int) -> None:
        for pipe in [pipe for pipe, owner in self._pipes.items() if owner == number]:
            for _ in range(64):
                if not self._drain(pipe):
                    break
        tail = self._tails[number].decode(errors="replace")
        self.say({"event": "exit", "rank": number, "status": status, "tail": tail})

    def say(self, answer: Answer) -> None:
        """Tell the tuner, where it still listens."""
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(answer).encode() + b"\n")


def main() -> None:
    """``supervisor DESCRIPTOR WORK_DIRECTORIES [MODULE...]``; the directories are JSON."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    work: list[str] = json.loads(sys.argv[2])
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    missing = {}
    with ended_with_the_tuner(control, work):
        for name in sys.argv[3:]:
            try:
                importlib.import_module(name)
            except Exception as error:  # a broken package is the ranks' to complain about
                missing[name] = f"{type(error).__name__}: {error}"
    children = Children(control)
    killed = False
    try:
        children.say({"event": "ready", "threads": list(_other_threads()), "missing": missing})
        killed = not children.serve()
    except ConnectionError:
        killed = is_gone(control)
    except Exception:
        traceback.print_exc()  # the tuner, which lives, tells it as the reason
    finally:
        children.end(0)
        sys.stderr.flush()
        leave(work, goodbye=not killed)


def _other_threads() -> Iterator[str]:
    """The names of the threads of this process beside the main one; one may end meanwhile."""
    for thread in set(os.listdir("/proc/self/task")) - {str(os.getpid())}:
        name = f"/proc/self/task/{thread}/comm"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(name, encoding="utf-8", errors="replace") as file:
                comm = file.read().strip()
            yield comm
