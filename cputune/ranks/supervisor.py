"""Starts the process that starts ranks, keeps it for further plans, and ends it.

What runs in that process is ``cputune.ranks.supervisor_main``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import psutil

from cputune.hidden import without_secrets
from cputune.host.children import below, end, tell
from cputune.host.interpreter import training_python
from cputune.inside import root_directory
from cputune.log import log
from cputune.plan import Plan
from cputune.ranks.listen import Post
from cputune.ranks.messages import Gone, RankCommand, Ready, Request
from cputune.ranks.work_folder import WorkFolder
from cputune.steps import BEFORE_ITS_FIRST_STEP, Crashed, TimedOut, TimeUp, TrialError
from cputune.workload import Workload

HARMLESS_THREADS = frozenset({"jemalloc_bg_thd"})
"""Threads that survive a fork unharmed: jemalloc stops and restarts its own around it."""

READY_SECONDS = 600.0
"""How long an import may take: a cold one of torch and transformers from a network disk takes
minutes."""

GONE_SECONDS = 30.0

GOODBYE_SECONDS = 10.0

LOOKS = 5
"""How often to look for processes that were started while others were being stopped."""

SAID_LETTERS = 4096

MOST = 6
"""The most supervisors that are kept on a machine, those used last; one that has imported torch
takes about 300 MB."""


class Supervisor:
    """A process of cputune that starts ranks, in a session of its own.

    ``fork`` is whether its ranks can be forks of it.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        modules: Sequence[str],
        work: WorkFolder,
        *,
        origin: Supervisor | None = None,
    ) -> None:
        """Start a new process; or fork ``origin``, which has the same environment and modules."""
        self.post: Post | None = None
        self.modules = tuple(modules)
        self.fork = False
        self.unsafe_threads: tuple[str, ...] = ()
        self._stopped: set[psutil.Process] = set()
        self._process: psutil.Process | None = None
        self._forked = origin is not None
        self.socket, theirs = socket.socketpair()
        name = f"supervisor-{self.socket.fileno()}-{time.monotonic_ns()}.log"
        self._log: Path = work.path / name if origin is None else origin._log
        if origin is not None:
            with theirs:
                origin.send({"do": "fork"}, theirs)
            return
        doomed = [str(folder) for folder in work.doomed]
        code = bootstrap("cputune.ranks.supervisor_main", "main()")
        argv = [training_python(), "-c", code, str(theirs.fileno()), json.dumps(doomed), *modules]
        # A process that forks may not start threads, as OpenBLAS would when it is loaded.
        own = {**environment, "OPENBLAS_NUM_THREADS": "1"} if modules else dict(environment)
        with theirs, self._log.open("wb") as written:
            self._process = psutil.Popen(
                argv,
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def join(self, post: Post, most_seconds: float = math.inf) -> None:
        """Wait until it is ready.

        Raises Crashed where the training stack cannot be loaded, TimeUp after ``most_seconds``.
        """
        self.post = post
        post.add(self.socket, self)
        try:
            told = self._await("ready", min(READY_SECONDS, most_seconds))
        except TimedOut:
            if most_seconds < READY_SECONDS:
                during = f"while importing {names_of(self.modules)}"
                raise TimeUp(during if self.modules else BEFORE_ITS_FIRST_STEP) from None
            raise
        ready = cast(Ready, told)
        if self._process is None:
            self._process = psutil.Process(ready["pid"])
        self.unsafe_threads = tuple(set(ready["threads"]) - HARMLESS_THREADS)
        self.fork = bool(self.modules) and not self.unsafe_threads

    def start(
        self,
        commands: Sequence[RankCommand],
        *,
        mark: tuple[str, str] | None = None,
    ) -> None:
        """Start the ranks of one plan, or the launchers that start them (see ``Start``)."""
        log.getChild("ranks").debug("%d processes start below a supervisor", len(commands))
        self.send({"do": "start", "commands": list(commands), "mark": mark})

    def end(self, grace_seconds: float) -> dict[str, str]:
        """End its ranks and everything they started, and wait until they are gone.

        Gives the tail of what each wrote, by its number. Where it has died, or does not answer, it
        is killed, and tells nothing.
        """
        self.continue_ranks()
        try:
            self.send({"do": "end", "grace_seconds": grace_seconds})
            told = self._await("gone", GONE_SECONDS + 2 * grace_seconds)
        except (OSError, TrialError):
            self.kill()
            return {}
        return cast(Gone, told)["tails"]

    def stop_ranks(self) -> None:
        """Stop all that it has started (SIGSTOP): the ranks with every thread, their workers.

        Nothing stays behind stopped, however this ends. It is continued before it is ended;
        where this process is killed, the supervisor kills what is below it, and
        SIGKILL needs nobody to be awake; where the supervisor is killed, so are the ranks
        (PR_SET_PDEATHSIG), and ``kill`` ends what those have started.
        """
        for _ in range(LOOKS):
            running = [one for one in self._below() if one not in self._stopped]
            if not running:
                return
            self._stopped.update(running)
            tell(running, signal.SIGSTOP)

    def continue_ranks(self) -> None:
        """Let what was stopped run again."""
        tell(self._stopped, signal.SIGCONT)
        self._stopped.clear()

    @property
    def alive(self) -> bool:
        """Whether it can start another plan."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return self._process is not None and self._process.status() != psutil.STATUS_ZOMBIE
        return False

    def kill(self) -> None:
        """Kill it and what is below it: the last resort, where it does not answer."""
        ranks = self._below()
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()
            self._process.wait()
        end(lambda: [rank for rank in ranks if rank.is_running()], grace_seconds=0)
        self._kill_stopped()

    def close(self) -> None:
        """Say goodbye; it ends whatever still runs."""
        if self.post is not None:
            self.post.remove(self.socket)
        with contextlib.suppress(OSError):
            self.send({"do": "goodbye"})
        self.socket.close()
        self.continue_ranks()
        try:
            if self._process is not None:
                self._process.wait(GOODBYE_SECONDS)
        except psutil.TimeoutExpired:
            self.kill()
        if not self._forked:
            self._log.unlink(missing_ok=True)

    def died(self) -> TrialError:
        """The error to raise where its line has been closed; nothing stays stopped."""
        self._kill_stopped()
        said = tail_of(self._log, lambda text: without_secrets(text, os.environ))
        return Crashed("the process that starts the ranks died", details=said or None)

    def cpu_seconds(self) -> float:
        """CPU time of all living processes below it."""
        total = 0.0
        for process in self._below():
            with contextlib.suppress(psutil.Error):
                used = process.cpu_times()
                total += used.user + used.system
        return total

    def send(self, request: Request, given: socket.socket | None = None) -> None:
        """Say something to it, and give it a socket. Raises OSError where it is gone."""
        self.socket.setblocking(True)
        line = json.dumps(request).encode() + b"\n"
        try:
            if given is None:
                self.socket.sendall(line)
            else:
                socket.send_fds(self.socket, [line], [given.fileno()])
        finally:
            self.socket.setblocking(False)

    def _below(self) -> list[psutil.Process]:
        return [] if self._process is None else below(self._process.pid)

    def _kill_stopped(self) -> None:
        tell(self._stopped, signal.SIGKILL)
        self._stopped.clear()

    def _await(self, event: str, seconds: float) -> dict[str, Any]:
        """What it says of this event. Raises Crashed where it has died, TimedOut."""
        assert self.post is not None, "it was joined"
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for source, message in self.post.wait(left):
                if source is self and message is None:
                    raise self.died()
                if source is self and message is not None and message["event"] == event:
                    return message
        raise TimedOut(f"the process that starts the ranks was not {event} in {seconds:.0f} s")


def bootstrap(module: str, call: str) -> str:
    """Python code for ``python -c`` that finds this very copy of cputune, and last of all.

    ``-m`` would put the working directory first on the path, where a file of the user's
    may have the name of a module of the standard library.
    """
    here = str(root_directory())
    found = f"{here!r} in sys.path or sys.path.append({here!r})"
    return (
        "import sys; sys.path[:] = [p for p in sys.path if p]; "
        f"{found}; from {module} import *; {call}"
    )


def tail_of(path: Path, clean: Callable[[str], str]) -> str:
    """The end of what was written to a file, without secrets; empty where there is none.

    Secrets are removed before it is cut: a secret whose beginning is cut off has no known shape.
    """
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4 * SAID_LETTERS))
        return clean(file.read().decode(errors="replace"))[-SAID_LETTERS:]
    return ""


def kernel_kills() -> int | None:
    """How often the kernel has killed for memory since it booted; control groups included."""
    with contextlib.suppress(OSError), open("/proc/vmstat", encoding="ascii") as file:
        for line in file:
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.strip().isdigit():
                return int(count)
    return None


def names_of(modules: Sequence[str]) -> str:
    """The packages of these modules, each once."""
    return ", ".join(dict.fromkeys(m.split(".")[0] for m in modules))


class Supervisors:
    """Those of a study, from which the supervisor of each launch is forked.

    There is one for each environment of libraries, and not more than MOST are kept, those used
    last, beside those that have a launch which still lives.
    """

    def __init__(self, post: Post, work: WorkFolder, on_note: Callable[[str], None]) -> None:
        self._post = post
        self._work = work
        self._on_note = on_note
        self._kept: dict[frozenset[tuple[str, ...]], Supervisor] = {}
        self._forks: list[tuple[Supervisor, Supervisor]] = []

    def ready(
        self,
        environment: Mapping[str, str],
        modules: Sequence[str],
        post: Post,
        most_seconds: float = math.inf,
    ) -> Supervisor:
        """One for a launch, with this environment, that has imported these modules.

        It speaks to ``post``, and who asked for it closes it. Raises Crashed or TimedOut where it
        does not come up, TimeUp where it takes longer than ``most_seconds``.
        """
        origin = self._origin(environment, modules, most_seconds)
        fork = Supervisor(environment, modules, self._work, origin=origin)
        try:
            fork.join(post, most_seconds)
        except BaseException:
            fork.close()
            raise
        self._forks.append((origin, fork))
        return fork

    def _origin(
        self, environment: Mapping[str, str], modules: Sequence[str], most_seconds: float
    ) -> Supervisor:
        key = frozenset({*environment.items(), ("modules", *modules)})
        supervisor = self._kept.pop(key, None)
        if supervisor is not None and supervisor.alive:
            self._kept[key] = supervisor  # the most recently used
            return supervisor
        if supervisor is not None:
            supervisor.close()
        self._forks = [pair for pair in self._forks if pair[1].alive]
        busy = {id(origin) for origin, _ in self._forks}
        idle = [other for other, one in self._kept.items() if id(one) not in busy]
        for other in idle[: max(0, len(self._kept) + 1 - MOST)]:
            self._kept.pop(other).close()
        supervisor = Supervisor(environment, modules, self._work)
        try:
            if modules:
                self._on_note(f"importing {names_of(modules)}")
            supervisor.join(self._post, most_seconds)
        except BaseException:
            supervisor.kill()  # it does not listen before everything is imported
            supervisor.close()
            raise
        if modules and supervisor.unsafe_threads:
            self._on_note(
                "ranks are started as new processes: importing the training stack starts "
                "threads (" + ", ".join(sorted(supervisor.unsafe_threads)) + ")"
            )
        self._kept[key] = supervisor
        return supervisor

    def close(self) -> None:
        """End all of them."""
        while self._kept:
            self._kept.popitem()[1].close()


def modules_of(plan: Plan, workload: Workload, source: str) -> tuple[str, ...]:
    """What the parent of forks imports; nothing where ranks must be new processes.

    A script (its text is ``source``) that sets variables itself may mean some that are
    read at import. libgomp counts the CPUs that it may use when it is loaded, and waits
    differently with more threads than that (gomp_init_num_threads), so such plans are not
    forked either.
    """
    if plan.oversubscribed:
        return ()
    ipex = ("intel_extension_for_pytorch",) if plan.ipex else ()
    recipe = workload.recipe
    if recipe is not None:
        kind = recipe.model["model_type"].replace("-", "_")
        family = f"transformers.models.{kind}.modeling_{kind}"
        return ("torch", *ipex, "transformers.trainer", "transformers.hf_argparser", family)
    if re.search(r"\benviron\b|\bputenv\b", source):
        return ()
    found = ["torch", *ipex]
    found += ["transformers.trainer"] if "Trainer" in source else []
    for name in ("accelerate", "transformers", "datasets", "evaluate"):
        if re.search(rf"\b{name}\b", source):
            found.append(name)
    return tuple(found)
