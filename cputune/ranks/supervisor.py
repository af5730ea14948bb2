"""Starts the process that starts the ranks of a launch, and ends it with all of them.

That process runs ``cputune.ranks.supervisor_main``. The last of the two to end removes the folder
of temporary files (``WorkFolder``).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from cputune.errors import CannotError
from cputune.host.children import below, end, send_signal
from cputune.host.files import TEMPORARY_FILES
from cputune.inside import root_directory
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.ranks.listen import Line
from cputune.ranks.supervisor_main import RankCommand, Request
from cputune.records.steps import BEFORE_ITS_FIRST_STEP, Crashed, TimedOut, TimeUp, TrialError
from cputune.text.hidden import without_secrets
from cputune.text.log import log

# Time limit of an import: a cold one of torch and transformers from a network disk takes
# minutes.
READY_SECONDS = 600.0

# How long killed processes are waited for: one that waits for a disk outlives SIGKILL.
GONE_SECONDS = 30.0

# How often to look for processes that were started while others were being stopped.
LOOKS = 5

# The end of a process's output: a traceback has some 2,000.
SAID_LETTERS = 4096

# The most supervisors that are kept to be forked, those used last; one with torch takes about
# 300 MB.
MOST = 6


# A folder with this prefix is locked (flock(2)) while its run lives; the kernel unlocks it when
# the run dies. A run on another host that sees the folder on a shared disk does not remove it.
OF_THIS_HOST = f"cputune-{socket.gethostname()}-"

# What tempfile.mkdtemp makes of the prefix.
_MADE = re.compile(re.escape(OF_THIS_HOST) + r"[a-z0-9_]{8}")

# To make a folder that no other run removes; a second one is rare.
_MOST_TRIES = 100


class WorkFolder:
    """A folder that only this user can read, in TMPDIR, without leftovers of killed runs."""

    def __init__(self) -> None:
        where = Path(tempfile.gettempdir())
        remove_orphans(where)
        self._locks: list[int] = []
        for _ in range(_MOST_TRIES):
            self.path = Path(tempfile.mkdtemp(prefix=OF_THIS_HOST, dir=where))
            # Until it is locked another run may remove it as left behind; it is still empty.
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                self._locks += _lock(self.path)
                if self.path.exists():
                    TEMPORARY_FILES.add(self.path)
                    return
        raise CannotError(f"cannot keep a folder in {where}", hint="TMPDIR names another place")

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        TEMPORARY_FILES.discard(self.path)
        while self._locks:
            os.close(self._locks.pop())

    def __enter__(self) -> WorkFolder:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def remove_orphans(place: Path) -> None:
    """Remove what killed runs of this user have left in ``place``."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(place)):
            with contextlib.suppress(OSError):
                is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if is_ours and _MADE.fullmatch(entry.name):
                    for lock in _lock(Path(entry.path)):
                        shutil.rmtree(entry.path, ignore_errors=True)
                        os.close(lock)


def _lock(folder: Path) -> list[int]:
    """The descriptor of a folder that is now locked, or None.

    A link, which anybody may plant in /tmp, is not followed. Raises BlockingIOError if another
    process holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return []  # a network file system that cannot lock
    return [descriptor]


class Supervisor:
    """A process of cputune that starts the ranks of one launch, in its own session.

    ``fork``: its ranks can be forks of it. ``lines`` are its messages.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        modules: Sequence[str],
        work: WorkFolder,
        *,
        python: str = sys.executable,
        origin: Supervisor | None = None,
        most_seconds: float = math.inf,
    ) -> None:
        """Start a new process of ``python``; or fork ``origin``, which has the same environment and
        modules.

        Raises Crashed if it dies, TimedOut if the training stack is not loaded in time,
        TimeUp after ``most_seconds``.
        """
        self.lines = Line(self)
        self.launches = 0
        """How many forks of it live."""
        self._ended = False
        self._stopped: set[psutil.Process] = set()
        self._process: psutil.Process | None = None
        self._origin = origin
        self.socket, theirs = socket.socketpair()
        name = f"supervisor-{self.socket.fileno()}-{time.monotonic_ns()}.log"
        self._log: Path = work.path / name if origin is None else origin._log
        try:
            with theirs:
                if origin is not None:
                    origin.launches += 1
                    origin._ask({"do": "fork"}, theirs)
                else:
                    code = bootstrap("cputune.ranks.supervisor_main", "main()")
                    # A process that forks may not start threads, as OpenBLAS would when loaded.
                    alone = {"OPENBLAS_NUM_THREADS": "1"} if modules else {}
                    given = (str(theirs.fileno()), str(work.path), *modules)
                    with self._log.open("wb") as written:
                        self._process = psutil.Popen(
                            [python, "-c", code, *given],
                            env={**environment, **alone},
                            stdin=subprocess.DEVNULL,
                            stdout=written,
                            stderr=written,
                            pass_fds=(theirs.fileno(),),
                            start_new_session=True,
                        )
            ready = self._await("ready", min(READY_SECONDS, most_seconds))
        except BaseException as error:
            self.kill()  # it does not listen before everything is imported
            if isinstance(error, TimedOut) and most_seconds < READY_SECONDS:
                during = f"while importing {names_of(modules)}"
                raise TimeUp(during if modules else BEFORE_ITS_FIRST_STEP) from None
            raise
        self._process = self._process or psutil.Process(ready["pid"])
        self.fork = bool(modules) and not ready["threads"]

    def start(
        self, commands: Sequence[RankCommand], *, mark: tuple[str, str] | None = None
    ) -> None:
        """Start the ranks, or the launchers that start them (``mark``: see ``Request``)."""
        log.getChild("ranks").debug("%d processes start below a supervisor", len(commands))
        self._ask({"do": "start", "commands": list(commands), "mark": mark})

    def end(self, grace_seconds: float = 0.0) -> dict[str, str]:
        """End its ranks, everything they started, and itself; a second time does nothing.

        Returns the tail of each one's output, by its number. If it has died, or does not answer, it
        is killed without tails.
        """
        tails: dict[str, str] = {}
        if not self._ended:
            self.continue_ranks()
            try:
                self._ask({"do": "end", "grace_seconds": grace_seconds})
                tails = self._await("gone", GONE_SECONDS + 2 * grace_seconds)["tails"]
                assert self._process is not None, "it is ready"
                self._process.wait(GONE_SECONDS)
                self._forget()
            except (OSError, TrialError, psutil.TimeoutExpired):
                self.kill()
        return tails

    def kill(self) -> None:
        """Kill what is below it and then it: the last resort, if it does not answer.

        It is stopped meanwhile, so it starts nothing more, and adopts orphans.
        """
        if self._process is not None:
            send_signal([self._process], signal.SIGSTOP)
            end(self.below, grace_seconds=0)
            send_signal([self._process], signal.SIGKILL)
            self._process.wait()
        send_signal(self._stopped, signal.SIGKILL)
        self._forget()

    def _forget(self) -> None:
        if not self._ended:
            self._ended = True
            self.socket.close()
            if self._origin is not None:
                self._origin.launches -= 1
            else:
                self._log.unlink(missing_ok=True)

    def stop_ranks(self) -> None:
        """Stop all that it has started (SIGSTOP): the ranks with every thread, their workers.

        Nothing stays stopped, however this ends: it is continued before it is ended; if this
        process is killed, the supervisor kills what is below it; if the supervisor is killed, so
        are the ranks (PR_SET_PDEATHSIG), and ``kill`` ends what those have started.
        """
        for _ in range(LOOKS):
            running = [process for process in self.below() if process not in self._stopped]
            if not running:
                return
            self._stopped.update(running)
            send_signal(running, signal.SIGSTOP)

    def continue_ranks(self) -> None:
        """Let what was stopped run again."""
        send_signal(self._stopped, signal.SIGCONT)
        self._stopped.clear()

    @property
    def alive(self) -> bool:
        """Whether it can be forked for another launch."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return self._process is not None and self._process.status() != psutil.STATUS_ZOMBIE
        return False

    def died(self) -> TrialError:
        """The error to raise if its line was closed; nothing stays stopped."""
        send_signal(self._stopped, signal.SIGKILL)
        self._stopped.clear()
        tail = tail_of(self._log, lambda text: without_secrets(text, os.environ))
        return Crashed("the process that starts the ranks died", details=tail or None)

    def _ask(self, request: Request, given: socket.socket | None = None) -> None:
        """Send it a request and a socket. Raises OSError if it is gone."""
        self.socket.settimeout(None)
        line = json.dumps(request).encode() + b"\n"
        if given is None:
            self.socket.sendall(line)
        else:
            socket.send_fds(self.socket, [line], [given.fileno()])

    def below(self) -> list[psutil.Process]:
        """Every process that it has started, and those that they have."""
        return [] if self._process is None else below(self._process.pid)

    def _await(self, event: str, seconds: float) -> dict[str, Any]:
        """The message of this event. Raises Crashed if it has died, TimedOut."""
        deadline = time.monotonic() + seconds
        while (seconds_left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(seconds_left)
            closed = self.lines.read(self.socket)
            for message in self.lines.take():
                if message["event"] == event:
                    return message
            if closed:
                raise self.died()
        raise TimedOut(f"the process that starts the ranks was not {event} in {seconds:.0f} s")


def bootstrap(module: str, call: str) -> str:
    """Python code for ``python -c`` that finds this copy of cputune, after all others.

    ``-m`` would put the working directory first on the path, with files that may hide modules of
    the standard library.
    """
    here = str(root_directory())
    on_path = f"{here!r} in sys.path or sys.path.append({here!r})"
    return (
        "import sys; sys.path[:] = [p for p in sys.path if p]; "
        f"{on_path}; from {module} import *; {call}"
    )


def tail_of(path: Path, clean: Callable[[str], str]) -> str:
    """The end of a file, without secrets; empty if it is missing.

    Secrets are removed before it is cut: half of a secret has no known shape.
    """
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4 * SAID_LETTERS))
        return clean(file.read().decode(errors="replace"))[-SAID_LETTERS:]
    return ""


def names_of(modules: Sequence[str]) -> str:
    """The packages of these modules, each once."""
    return ", ".join(dict.fromkeys(m.split(".")[0] for m in modules))


class Supervisors:
    """Those of a study that have imported the training stack; that of each launch is a fork of one.

    There is one for each environment of libraries, and at most MOST are kept, besides those with a
    living launch.
    """

    def __init__(self, work: WorkFolder, on_note: Callable[[str], None], python: str) -> None:
        self._python = python
        self._work = work
        self._on_note = on_note
        self._kept: dict[frozenset[tuple[str, ...]], Supervisor] = {}

    def ready(
        self,
        environment: Mapping[str, str],
        modules: Sequence[str],
        most_seconds: float = math.inf,
    ) -> Supervisor:
        """One for a launch, with this environment, that has imported these modules.

        The caller ends it. Raises as ``Supervisor`` does.
        """
        new = partial(
            Supervisor,
            environment,
            modules,
            self._work,
            python=self._python,
            most_seconds=most_seconds,
        )
        if not modules:
            return new()
        key = frozenset({*environment.items(), ("modules", *modules)})
        origin = self._kept.pop(key, None)
        if origin is not None and not origin.alive:
            origin.end()
            origin = None
        if origin is None:
            idle = [other for other, kept in self._kept.items() if not kept.launches]
            for other in idle[: max(0, len(self._kept) + 1 - MOST)]:
                self._kept.pop(other).end()
            self._on_note(f"importing {names_of(modules)}")
            origin = new()
        self._kept[key] = origin  # the most recently used
        return new(origin=origin)

    def close(self) -> None:
        while self._kept:
            self._kept.popitem()[1].end()


# Any optimizer's first step imports the second one, for a second.
TORCH = ("torch", "torch._dynamo")


def modules_of(plan: Plan, workload: Workload, source: str) -> tuple[str, ...]:
    """What the parent of forks imports; nothing if ranks must be new processes.

    A script (its text is ``source``) that sets variables itself may mean some that are read at
    import. libgomp counts its CPUs when it is loaded, and waits differently with more threads than
    that (gomp_init_num_threads), so such plans are not forked either.
    """
    if plan.oversubscribed:
        return ()
    modules = list(TORCH)
    if plan.ipex:
        modules.append("intel_extension_for_pytorch")
    recipe = workload.recipe
    if recipe is not None:
        kind = recipe.model["model_type"].replace("-", "_")
        modules += ["transformers.trainer", "transformers.hf_argparser"]
        modules.append(f"transformers.models.{kind}.modeling_{kind}")
        return tuple(modules)
    if re.search(r"\benviron\b|\bputenv\b", source):
        return ()
    if "Trainer" in source:
        modules.append("transformers.trainer")
    for name in ("accelerate", "transformers", "datasets", "evaluate"):
        if re.search(rf"\b{name}\b", source):
            modules.append(name)
    return tuple(modules)
