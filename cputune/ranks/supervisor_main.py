"""The process that starts ranks, watches over them, and leaves none behind.

It stands between the tuner, which must stay small and may be killed at any moment, and
the ranks. It is a child subreaper (prctl(2)), so that whatever the ranks start stays its
descendant, and it ends them all when it is told to, or when the tuner is gone.

It first imports the modules that it is given; ranks are then forks of it and pay no
import. What must be in the environment when a library is loaded (LD_PRELOAD,
OMP_PROC_BIND, MALLOC_CONF...) is in the supervisor's own, so each such environment needs a
supervisor of its own. A fork is only right while there is no other thread: it says which
threads it has, and the tuner decides. So that several launches of one such environment can
live at once, it also forks itself: each launch has a supervisor of its own.

It speaks the lines of ``cputune.ranks.messages`` on the socket that it is given as a
descriptor. Only the standard library is loaded, until the first ranks are ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
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
import traceback
from collections.abc import Callable, Iterator, Sequence
from select import POLLHUP, POLLRDHUP, poll
from typing import IO, NoReturn

from cputune.ranks.messages import Answer, RankCommand, Request

TAIL_BYTES = 32 << 10
"""The most bytes of a tail. Secrets are removed first, then half of it is kept: a secret that was
cut in two is in the other half."""
HELD_SECONDS = 5.0
"""How long a launch that is held on another host may take to end before the way to it is ended."""

MOST_INPUT_BYTES = 1 << 20
"""What a pipe holds at most without privilege (pipe(7)): nobody waits while it is written."""

PR_SET_CHILD_SUBREAPER = 36


class Children:
    """The processes of one trial at a time, and what they write.

    ``become_another`` is called in a fork of this process, with the descriptor that it speaks on.
    """

    def __init__(
        self, control: socket.socket, become_another: Callable[[int], None] = os.close
    ) -> None:
        self._control = control
        self._become_another = become_another
        self._given: list[int] = []
        self._selector = selectors.DefaultSelector()
        self._numbers: dict[int, int] = {}
        self._tails: dict[int, bytearray] = {}
        self._pipes: dict[int, int] = {}
        self._mark: tuple[str, str] | None = None
        self._inputs: dict[int, IO[bytes]] = {}
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
                data, given, *_ = socket.recv_fds(self._control, 1 << 16, 1)
                self._given += given
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
        self._end_inputs()
        end(
            lambda: below(os.getpid()) + (marked(*mark) if mark else []),
            grace_seconds=grace_seconds,
            pause=self._wait,
        )
        self._reap()
        # A killed process with many threads may be reaped later; no wait for it here.
        self._numbers.clear()
        for pipe in list(self._pipes):
            while self._drain(pipe):
                pass
            if pipe in self._pipes:
                self._let_go(pipe)

    def _end_inputs(self) -> None:
        """What is held on another host ends by itself, once nothing more comes from us."""
        held = set(self._inputs)
        while self._inputs:
            self._inputs.popitem()[1].close()
        until = time.monotonic() + HELD_SECONDS
        while held & set(self._numbers) and time.monotonic() < until:
            self._wait(0.02)

    def _obey(self, request: Request) -> bool:
        """Do what the tuner asks. False where it says goodbye."""
        if request["do"] == "start":
            self._mark = request["mark"]
            for number, command in enumerate(request["commands"]):
                self._start(number, command)
        elif request["do"] == "fork":
            self._fork_myself(self._given.pop(0))
        elif request["do"] == "end":
            self.end(request["grace_seconds"])
            tails = {str(n): tail.decode(errors="replace") for n, tail in self._tails.items()}
            self._tails.clear()
            self.say({"event": "gone", "tails": tails})
        return request["do"] != "goodbye"

    def _fork_myself(self, descriptor: int) -> None:
        parent = os.getpid()
        if os.fork() == 0:
            try:
                self._forget()
                _prepare(None, parent)
                self._become_another(descriptor)
            finally:
                os._exit(70)
        os.close(descriptor)

    def _start(self, number: int, command: RankCommand) -> None:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            if command["fork"]:
                pid = fork(command, write_end, self._forget)
            else:
                pid, held = spawn(command, write_end)
                if held is not None:
                    self._inputs[pid] = held
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
        for descriptor in (self._wake, self._wake_write, *self._pipes):
            os.close(descriptor)
        for held in self._inputs.values():
            held.close()

    def _wait(self, seconds: float) -> None:
        """Wait, then reap and read: a rank that writes much can only end while it is read."""
        time.sleep(seconds)
        for key, _ in self._selector.select(0):
            if key.fileobj is not self._control:
                self._attend(key.fd)

    def _attend(self, descriptor: int) -> None:
        if descriptor == self._wake:
            with contextlib.suppress(BlockingIOError):  # came while ranks ended
                os.read(self._wake, 4096)
            self._reap()
        elif descriptor in self._pipes:  # else _reap has read it to its end
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
                if number is not None:  # else an orphan of a rank, adopted here
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
    with ended_with_the_tuner(control, work):
        for name in sys.argv[3:]:
            with contextlib.suppress(Exception):  # the ranks report a broken package
                importlib.import_module(name)
    supervise(control, work)


def supervise(control: socket.socket, work: list[str]) -> NoReturn:
    """Start ranks for the tuner at the other end, until it says goodbye or is gone."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    def become_another(descriptor: int) -> None:
        given = socket.socket(fileno=descriptor)
        given.set_inheritable(False)
        supervise(given, work)

    children = Children(control, become_another)
    killed = False
    try:
        children.say({"event": "ready", "pid": os.getpid(), "threads": list(_other_threads())})
        killed = not children.serve()
    except ConnectionError:
        killed = is_gone(control)
    except Exception:
        traceback.print_exc()  # the tuner lives, and reports it as the reason
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


PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def _prepare(cpus: list[int] | None, parent: int) -> None:
    """What a rank does first: own session, end with its parent, bound to its CPUs."""
    os.setsid()
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)


def spawn(command: RankCommand, output: int) -> tuple[int, IO[bytes] | None]:
    """Start a rank as a new process that writes to ``output``.

    Its process id, and its standard input, which is held open, where it has one.
    """
    parent = os.getpid()
    child = subprocess.Popen(
        command["argv"],
        env=command["env"],
        cwd=command["cwd"],
        stdin=subprocess.DEVNULL if command["input"] is None else subprocess.PIPE,
        stdout=output,
        stderr=output,
        bufsize=0,
        preexec_fn=lambda: _prepare(command["cpus"], parent),
    )
    if command["input"] is not None and child.stdin is not None:
        fcntl.fcntl(child.stdin, fcntl.F_SETPIPE_SZ, MOST_INPUT_BYTES)
        os.set_blocking(child.stdin.fileno(), False)
        with contextlib.suppress(BrokenPipeError):  # it has ended
            child.stdin.write(command["input"].encode())
    child.returncode = 0  # this process reaps it, not subprocess
    return child.pid, child.stdin


def fork(command: RankCommand, output: int, forget: Callable[[], None]) -> int:
    """Start a rank as a fork of this process; its process id.

    ``forget`` lets go, in the rank, of what belongs to this process.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        forget()
        _be_rank(command, output, parent)
    return pid


def _be_rank(command: RankCommand, output: int, parent: int) -> None:
    """The life of a forked rank; never returns."""
    status = 70
    try:
        _prepare(command["cpus"], parent)
        with open(os.devnull, "rb") as null:
            os.dup2(null.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.chdir(command["cwd"])
        for name in set(os.environ) - set(command["env"]):
            del os.environ[name]
        os.environ.update(command["env"])
        threads = command["env"].get("OMP_NUM_THREADS", "").split(",")[0]
        if threads.isdigit() and "torch" in sys.modules:
            # libgomp has read the variable when it was loaded, before it was set.
            sys.modules["torch"].set_num_threads(int(threads))
        from cputune.inside.hooks import run_script

        status = run_script(command["argv"])
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


@contextlib.contextmanager
def ended_with_the_tuner(control: socket.socket, work: Sequence[str]) -> Iterator[None]:
    """Let SIGIO end this process if the tuner goes away while modules are imported.

    No thread watches for that: ranks can only be forked without threads.
    """

    def look(*_: object) -> None:
        if is_gone(control):
            said = b""
            with contextlib.suppress(OSError):
                said = control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            leave(work, goodbye=bool(said))

    signal.signal(signal.SIGIO, look)
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)
    look()
    yield
    fcntl.fcntl(control, fcntl.F_SETFL, flags)
    signal.signal(signal.SIGIO, signal.SIG_DFL)


def is_gone(control: socket.socket) -> bool:
    """Whether the tuner has closed its end."""
    look = poll()
    look.register(control, POLLRDHUP | POLLHUP)
    return bool(look.poll(0))


def leave(work: Sequence[str], *, goodbye: bool) -> NoReturn:
    """End this process; a tuner that has not said goodbye was killed, so its files go too."""
    if not goodbye:
        for directory in work:
            shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)
