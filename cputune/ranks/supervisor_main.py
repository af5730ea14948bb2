"""The process that starts ranks, watches over them, and leaves none behind.

It stands between the tuner, which must stay small and may be killed at any moment, and
the ranks. It is a child subreaper (prctl(2)), so that whatever the ranks start stays its
descendant, and it ends them all on request, or when the tuner is gone.

It first imports the modules that it is given; ranks are then forks of it and pay no
import. What must be in the environment when a library is loaded (LD_PRELOAD,
OMP_PROC_BIND, MALLOC_CONF...) is in the supervisor's own, so each such environment needs a
supervisor of its own. A fork is only right while there is no other thread: it says which
threads it has, and the tuner decides. So that several launches of one such environment can
live at once, it also forks itself: each launch has a supervisor of its own.

On the socket that it is given as a descriptor it receives a ``Request`` and answers with what
happened (``event``): JSON objects, one a line.

=========  ==============================  ====================================================
``event``  beside it                       what happened
=========  ==============================  ====================================================
``ready``  ``pid``, ``threads``            the modules are imported; ``threads`` names those
                                           beside the main one that bar a fork
``exit``   ``rank``, ``status``, ``tail``  one that was started has ended (``Exit``)
``gone``   ``tails``                       nothing is left; what each wrote last, by its number
=========  ==============================  ====================================================

Only the standard library is loaded, until the first ranks are ended.
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
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Literal, NoReturn, TypedDict

if TYPE_CHECKING:
    from cputune.ranks.relay import Relay

# The most bytes of a tail. Secrets are removed first, then half of it is kept: a secret that was
# cut in two is in the other half.
TAIL_BYTES = 32 << 10
# How long a launch that is held on another host may take to end before the way to it is ended.
HELD_SECONDS = 5.0

# The exit status if a host is silent: OpenSSH ends with it if the connection is cut.
LOST_STATUS = 255

# How long is waited for the kernel to take down what was killed, with its threads and memory.
REAP_SECONDS = 5.0

# What a pipe holds at most without privilege (pipe(7)): nobody waits while it is written.
MOST_INPUT_BYTES = 1 << 20

# Threads that survive a fork unharmed: jemalloc stops and restarts its own around it.
HARMLESS_THREADS = frozenset({"jemalloc_bg_thd"})

# prctl(2): the numbers of linux/prctl.h.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

_LIBC = ctypes.CDLL(None)


class RankCommand(TypedDict, total=False):
    """How one rank, or one launcher, is started; ``argv`` and ``env`` say it all for most.

    Attributes:
        argv: its words; of a fork, the script with its arguments.
        env: its environment.
        cwd: the folder in which it starts, if that is not this one.
        cpus: those that it is bound to.
        fork: it is a fork of the supervisor, which has imported the training stack.
        input: written to its standard input, which stays open until it is to end.
        relay: the tuner's socket; what ranks send over its standard output is forwarded to it.
        silent_seconds: after which a host that answers nothing is lost (``ranks/relay.py``).
        host: it is no launch, but the relay of this host. Empty: a batch job has started it, and
            ends it.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str | None
    cpus: list[int] | None
    fork: bool
    input: str
    relay: str
    silent_seconds: float
    host: str


class Request(TypedDict, total=False):
    """A request to a supervisor.

    ``start`` these ``commands``, numbered from 0. ``mark`` is a variable with its value by which
    processes are found that a launcher has started elsewhere (slurmd); None if everything is
    below the supervisor. ``fork``: make a copy of the supervisor, which speaks on the descriptor
    sent with this (SCM_RIGHTS). ``end`` everything that was started, and yourself; 0 seconds of
    grace kill at once. One whose line is cut without it takes the tuner for killed.
    """

    do: Literal["start", "fork", "end"]
    commands: list[RankCommand]
    mark: tuple[str, str] | None
    grace_seconds: float


class Exit(TypedDict):
    """One that was started has ended; ``tail`` is what it wrote last."""

    event: Literal["exit"]
    rank: int
    status: int
    tail: str


class Child:
    """One process that was started: its number, the pipe of what it writes, and the end of that.

    ``input`` is its standard input, held open if it has one.
    """

    def __init__(self, number: int, pipe: int) -> None:
        self.number = number
        self.pipe: int | None = pipe
        self.input: IO[bytes] | None = None
        self.relay: Relay | None = None
        self.written = bytearray()
        self.runs = True
        self.is_lost = False

    @property
    def tail(self) -> str:
        """The end of what it has written."""
        return self.written.decode(errors="replace")

    def read(self) -> bool | None:
        """Read what it has written. None if there is nothing now, False if there never will be."""
        if self.pipe is None:
            return False
        try:
            data = os.read(self.pipe, 1 << 18)
        except BlockingIOError:
            return None
        self.keep(data)
        return bool(data)

    def keep(self, data: bytes) -> None:
        """Keep the end of what it has written."""
        self.written += data
        del self.written[:-TAIL_BYTES]

    def give(self, data: bytes) -> None:
        """Write to its standard input; what does not read it, or has ended, gets nothing."""
        if self.input is not None and not self.input.closed:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                self.input.write(data)


class Children:
    """The processes of one launch, and what they write."""

    def __init__(self, control: socket.socket, work: str) -> None:
        self._control = control
        self._work = work
        self._children: dict[int, Child] = {}
        self._mark: tuple[str, str] | None = None
        self._selector = selectors.DefaultSelector()
        self._wake, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(control, selectors.EVENT_READ)

    def serve(self) -> bool:
        """Do what the tuner asks. True once it has said that all shall end, False if it is gone."""
        rest = b""
        given: list[int] = []
        while True:
            for key, events in self._selector.select(self._beat()):
                if key.fileobj is not self._control:
                    self._attend(key, events)
                    continue
                data, more, *_ = socket.recv_fds(self._control, 1 << 16, 1)
                given += more
                if not data:
                    return False
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    request: Request = json.loads(line)
                    if request["do"] == "start":
                        self._mark = request["mark"]
                        for number, command in enumerate(request["commands"]):
                            self._start(number, command)
                    elif request["do"] == "fork":
                        self._fork_myself(given.pop(0))
                    else:
                        self.end(request["grace_seconds"])
                        return True

    def end(self, grace_seconds: float) -> None:
        """End every descendant, and what bears the mark; tell the tuner what they wrote last.

        What is held on another host ends by itself, once its input has ended. All are reaped here:
        what this process leaves as a zombie is adopted by process 1, which in many a container
        reaps nothing.
        """
        from cputune.host.children import below, end, marked

        mark = self._mark
        held = [child for child in self._children.values() if child.input is not None]
        for child in held:
            assert child.input is not None
            child.input.close()
        self._wait_while(lambda: any(child.runs for child in held), HELD_SECONDS)
        end(
            lambda: below(os.getpid()) + (marked(*mark) if mark else []),
            grace_seconds=grace_seconds,
            pause=self._wait,
        )
        self._wait_while(self._reap, REAP_SECONDS)
        for child in self._children.values():
            while child.read():
                pass
        self.send(
            "gone", tails={str(child.number): child.tail for child in self._children.values()}
        )

    def send(self, event: str, **details: object) -> None:
        """Report to the tuner what happened, if it still listens."""
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps({"event": event, **details}).encode() + b"\n")

    def _beat(self) -> float | None:
        """Show every host that we are there, and end the way to one that is lost.

        Gives for how long to sleep.
        """
        seconds = None
        for pid, child in self._children.items():
            if child.relay is None or not child.runs:
                continue
            seconds = child.relay.seconds
            if not child.relay.beat() and not child.is_lost:
                child.is_lost = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return seconds

    def _fork_myself(self, descriptor: int) -> None:
        parent = os.getpid()
        if os.fork() == 0:
            try:
                self._forget()
                _prepare(None, parent)
                supervise(descriptor, self._work)
            finally:
                os._exit(70)
        os.close(descriptor)

    def _start(self, number: int, command: RankCommand) -> None:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        child = Child(number, read_end)
        parent = os.getpid()
        try:
            if not command.get("fork"):
                pid, child.input, reports = spawn(command, write_end)
                if reports is not None:
                    from cputune.ranks.relay import SILENT_SECONDS, Relay  # few launches have one

                    child.relay = Relay(
                        reports,
                        child.give,
                        command["relay"],
                        self._selector,
                        child.keep,
                        silent_seconds=command.get("silent_seconds", SILENT_SECONDS),
                    )
            elif (pid := os.fork()) == 0:
                self._forget()
                _be_rank(command, write_end, parent)
        except OSError as error:
            os.close(read_end)
            self.send("exit", rank=number, status=127, tail=str(error))
            return
        finally:
            os.close(write_end)
        os.set_blocking(read_end, False)
        self._children[pid] = child
        self._selector.register(read_end, selectors.EVENT_READ, child)

    def _forget(self) -> None:
        """In a fork: no longer listen for this process, or to the tuner, which waits for the end
        of the line.
        """
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._control.close()

    def _wait_while(self, is_true: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while is_true() and time.monotonic() < until:
            self._wait(0.02)

    def _wait(self, seconds: float) -> None:
        """Wait, then reap and read: a rank that writes much can only end while it is read."""
        time.sleep(seconds)
        for key, events in self._selector.select(0):
            if key.fileobj is not self._control:
                self._attend(key, events)

    def _attend(self, key: selectors.SelectorKey, events: int) -> None:
        """Reap those that have ended, or read what a child has written."""
        if callable(key.data):  # a relay's
            key.data(events)
            return
        child: Child | None = key.data
        if child is None:
            with contextlib.suppress(BlockingIOError):  # came while ranks ended
                os.read(self._wake, 4096)
            self._reap()
        elif child.read() is False and child.pipe is not None:
            self._selector.unregister(child.pipe)
            os.close(child.pipe)
            child.pipe = None

    def _reap(self) -> bool:
        """Reap those that have ended, and tell of the ranks among them; whether any child is left.

        An orphan of a rank is a child too, adopted here.
        """
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                child = self._children.get(pid)
                if child is None or not child.runs:
                    continue
                child.runs = False
                child.read()  # all of it: more than a pipe holds
                if child.relay is not None:
                    child.relay.close()
                code = os.waitstatus_to_exitcode(status)
                if child.is_lost:
                    code = LOST_STATUS
                    child.keep(b"\nTimeout, server not responding.\n")
                self.send("exit", rank=child.number, status=code, tail=child.tail)
        return False


def main() -> None:
    """``supervisor DESCRIPTOR WORK_DIRECTORY [MODULE...]``."""
    descriptor, work = int(sys.argv[1]), sys.argv[2]
    with ended_with_the_tuner(descriptor, work):
        for name in sys.argv[3:]:
            with contextlib.suppress(Exception):  # the ranks report a broken package
                importlib.import_module(name)
    supervise(descriptor, work)


def supervise(descriptor: int, work: str) -> NoReturn:
    """Start ranks for the tuner at the other end, until it says that all shall end or is gone.

    Of a tuner that is gone the folder ``work`` is removed.
    """
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    children = Children(control, work)
    ended, gone = False, True
    try:
        threads = sorted({*_other_threads()} - HARMLESS_THREADS)
        children.send("ready", pid=os.getpid(), threads=threads)
        ended = children.serve()
        gone = not ended
    except ConnectionError:
        pass
    except Exception:
        gone = False
        traceback.print_exc()  # the tuner lives, and reports it as the reason
    finally:
        if not ended:
            children.end(0)
        sys.stderr.flush()
        if gone:
            shutil.rmtree(work, ignore_errors=True)
        os._exit(0)


def _other_threads() -> Iterator[str]:
    """The names of the threads of this process beside the main one; one may end meanwhile."""
    for thread in set(os.listdir("/proc/self/task")) - {str(os.getpid())}:
        name = f"/proc/self/task/{thread}/comm"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(name, encoding="utf-8", errors="replace") as file:
                comm = file.read().strip()
            yield comm


def _prepare(cpus: list[int] | None, parent: int) -> None:
    """What a rank does first: own session, end with its parent, bound to its CPUs."""
    os.setsid()
    end_with(parent)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)


def end_with(parent: int) -> None:
    """Have the kernel kill this process, a child of ``parent``, as soon as that has ended."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def spawn(command: RankCommand, output: int) -> tuple[int, IO[bytes] | None, int | None]:
    """Start a rank as a new process that writes to ``output``.

    Its process id; its standard input, which is held open, if it has one; and the descriptor of
    its standard output, if that is relayed.
    """
    parent, text = os.getpid(), command.get("input")
    reports, stdout = None, output
    if command.get("relay"):
        reports, stdout = os.pipe2(os.O_CLOEXEC)
    child = subprocess.Popen(
        command["argv"],
        env=command["env"],
        cwd=command.get("cwd"),
        stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
        stdout=stdout,
        stderr=output,
        bufsize=0,
        preexec_fn=lambda: _prepare(command.get("cpus"), parent),
    )
    if reports is not None:
        os.close(stdout)
    if text is not None and child.stdin is not None:
        fcntl.fcntl(child.stdin, fcntl.F_SETPIPE_SZ, MOST_INPUT_BYTES)
        os.set_blocking(child.stdin.fileno(), False)
        with contextlib.suppress(BrokenPipeError):  # it has ended
            child.stdin.write(text.encode())
    child.returncode = 0  # this process reaps it, not subprocess
    return child.pid, child.stdin, reports


def _be_rank(command: RankCommand, output: int, parent: int) -> NoReturn:
    """The life of a forked rank."""
    status = 70
    try:
        _prepare(command.get("cpus"), parent)
        with open(os.devnull, "rb") as null:
            os.dup2(null.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
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
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


@contextlib.contextmanager
def ended_with_the_tuner(descriptor: int, work: str) -> Iterator[None]:
    """Let SIGIO end this process if the tuner is killed while modules are imported.

    No thread watches for that: ranks can only be forked without threads.
    """

    def look(*_: object) -> None:
        with contextlib.suppress(BlockingIOError), socket.socket(fileno=os.dup(descriptor)) as line:
            if not line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                shutil.rmtree(work, ignore_errors=True)
                os._exit(0)

    signal.signal(signal.SIGIO, look)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    look()
    yield
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
