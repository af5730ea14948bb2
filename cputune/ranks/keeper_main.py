"""The process that starts ranks, watches over them, and leaves none behind.

It stands between the tuner, which must stay small and may be killed at any moment, and
the ranks. It is a child subreaper (prctl(2)), so that whatever the ranks start stays its
descendant, and it ends them all when it is told to, or when the tuner is gone.

With ``--import`` it first imports the training stack; ranks are then forks of it and pay
no import. What must be in the environment when a library is loaded (LD_PRELOAD,
OMP_PROC_BIND, MALLOC_CONF...) is in the keeper's own, so each such environment needs a
keeper of its own. A fork is only right while there is no other thread: it says which
threads it has, and the tuner decides.

It speaks JSON lines on the socket that it is given as a descriptor:

- in: ``start`` (a list of ranks: ``argv, env, cwd, cpus, fork``), ``end`` (``grace``: the
  seconds between SIGINT, SIGTERM and SIGKILL; 0 kills at once);
- out: ``ready`` (``threads``, ``missing``), ``exit`` (``rank, status, tail``), ``gone``
  (``tails``: what each rank wrote last).
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
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

TAIL_BYTES = 16 << 10
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class Keeper:
    """One trial at a time."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, int] = {}
        self._tails: dict[int, bytearray] = {}
        self._pipes: dict[int, int] = {}
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
                if key.fileobj is self._control:
                    data = self._control.recv(1 << 16)
                    if not data:
                        return False
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        message = json.loads(line)
                        if "bye" in message:
                            return True
                        self._obey(message)
                elif key.fileobj == self._wake:
                    os.read(self._wake, 4096)
                    self._reap()
                else:
                    self._drain(key.fd)

    def _obey(self, message: dict[str, Any]) -> None:
        if "start" in message:
            for number, rank in enumerate(message["start"]):
                self._start(number, rank)
        elif "end" in message:
            self.end_all(float(message["end"]))
            tails = {n: tail.decode(errors="replace") for n, tail in self._tails.items()}
            self._tails.clear()
            self._say({"event": "gone", "tails": tails})

    def _start(self, number: int, rank: dict[str, Any]) -> None:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            if rank["fork"]:
                parent = os.getpid()
                pid = os.fork()
                if pid == 0:
                    self._forget()
                    _be_rank(rank, write_end, parent)
            else:
                pid = _spawn(rank, write_end)
        except OSError as error:
            os.close(read_end)
            self._say({"event": "exit", "rank": number, "status": 127, "tail": str(error)})
            return
        finally:
            os.close(write_end)
        os.set_blocking(read_end, False)
        self._ranks[pid] = number
        self._tails[number] = bytearray()
        self._pipes[read_end] = number
        self._selector.register(read_end, selectors.EVENT_READ)

    def _forget(self) -> None:
        """In a forked rank: let go of everything that is the keeper's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._control.close()
        for descriptor in (self._wake, self._wake_write, *self._pipes):
            os.close(descriptor)

    def _drain(self, pipe: int) -> bool:
        """Read what a rank has written and keep its end. False where there is no more."""
        try:
            data = os.read(pipe, 1 << 18)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(pipe)
            os.close(pipe)
            del self._pipes[pipe]
            return False
        tail = self._tails[self._pipes[pipe]]
        tail += data
        del tail[:-TAIL_BYTES]
        return True

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self._ranks.pop(pid, None)
            if number is None:
                continue  # an orphan of a rank, left to us
            for pipe in [p for p, n in self._pipes.items() if n == number]:
                for _ in range(64):
                    if not self._drain(pipe):
                        break
            self._say(
                {
                    "event": "exit",
                    "rank": number,
                    "status": os.waitstatus_to_exitcode(status),
                    "tail": self._tails[number].decode(errors="replace"),
                }
            )

    def end_all(self, grace: float) -> None:
        """End every descendant; with a grace, ranks are first asked to end by themselves."""
        if grace > 0:
            for number in (signal.SIGINT, signal.SIGTERM):
                if not self._ranks:
                    break
                for pid in self._ranks:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, number)
                self._await_ranks(time.monotonic() + grace)
        while True:
            alive = list(descendants(os.getpid()))
            for pid in alive:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not alive:
                break
            time.sleep(0.002)
        self._ranks.clear()
        for pipe in list(self._pipes):
            while pipe in self._pipes and self._drain(pipe):
                pass
            if pipe in self._pipes:
                self._selector.unregister(pipe)
                os.close(pipe)
                del self._pipes[pipe]

    def _await_ranks(self, deadline: float) -> None:
        """Wait until the ranks have ended, and keep their pipes empty so that they can."""
        while self._ranks and (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if key.fileobj == self._wake:
                    os.read(self._wake, 4096)
                    self._reap()
                elif key.fileobj is self._control:
                    return
                else:
                    self._drain(key.fd)

    def _say(self, event: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(event).encode() + b"\n")


def descendants(root: int) -> Iterator[int]:
    """Every living process below ``root``, by the parents that /proc tells."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # "pid (comm) state ppid": the name may hold blanks and brackets.
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    parents[int(name)] = int(fields[1])
    known = {root}
    growing = True
    while growing:
        growing = False
        for pid, parent in parents.items():
            if parent in known and pid not in known:
                known.add(pid)
                growing = True
                yield pid


def _prepare(cpus: list[int] | None, parent: int) -> None:
    """What a rank does first: own session, end with its parent, bound to its CPUs."""
    os.setsid()
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)


def _spawn(rank: dict[str, Any], output: int) -> int:
    parent = os.getpid()
    child = subprocess.Popen(
        rank["argv"],
        env=rank["env"],
        cwd=rank["cwd"],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        preexec_fn=lambda: _prepare(rank["cpus"], parent),
    )
    child.returncode = 0  # reaped by us, not by subprocess
    return child.pid


def _be_rank(rank: dict[str, Any], output: int, parent: int) -> None:
    """The life of a forked rank; never returns."""
    status = 70
    try:
        _prepare(rank["cpus"], parent)
        with open(os.devnull, "rb") as null:
            os.dup2(null.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.chdir(rank["cwd"])
        for name in set(os.environ) - set(rank["env"]):
            del os.environ[name]
        os.environ.update(rank["env"])
        threads = rank["env"].get("OMP_NUM_THREADS", "").split(",")[0]
        if threads.isdigit() and "torch" in sys.modules:
            # libgomp has read the variable when it was loaded, before it was set.
            sys.modules["torch"].set_num_threads(int(threads))
        from cputune.inside.run import run_script

        status = run_script(rank["argv"])
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def main() -> None:
    """``keeper DESCRIPTOR WORK_DIRECTORY [MODULE...]``."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    work = sys.argv[2]
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    missing = {}
    for name in sys.argv[3:]:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken package is the ranks' to complain about
            missing[name] = f"{type(error).__name__}: {error}"
    keeper = Keeper(control)
    threads = []
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
            threads.append(file.read().strip())
    control.sendall(
        json.dumps({"event": "ready", "threads": threads, "missing": missing}).encode() + b"\n"
    )
    goodbye = False
    try:
        goodbye = keeper.serve()
    except ConnectionError:
        pass
    finally:
        keeper.end_all(0)
        if not goodbye:
            shutil.rmtree(work, ignore_errors=True)
        sys.stderr.flush()
        os._exit(0)
