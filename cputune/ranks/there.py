"""Another host on which ranks run, at the end of a line to it (``cputune.nodes``).

What a supervisor and its ranks load of ours is sent over, into the folder that the agent removes
when the line is gone. So nothing of cputune has to be installed there, and what runs is this
version; torch and what else the script imports is the other host's own.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from cputune.errors import CputuneError
from cputune.inside import root_directory
from cputune.nodes.line import Line
from cputune.ranks.messages import RankCommand
from cputune.ranks.process_here import kills_in, supervisor_command, supervisor_environment
from cputune.steps import Crashed, HostLost, TrialError

if TYPE_CHECKING:
    from cputune.ranks.hosts import RankHost
    from cputune.ranks.listen import Post
    from cputune.ranks.work_folder import WorkFolder

OWN_VARIABLES = (
    "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "TMPDIR", "TEMP", "TMP", "XDG_RUNTIME_DIR",
    "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY", "SSH_AUTH_SOCK", "DISPLAY",
)  # fmt: skip
"""Variables that mean something on one machine alone; all others are ours, as MPI's are."""

SENT = ("ranks/messages.py", "ranks/ports.py", "ranks/rank_process.py", "ranks/tuner_watch.py",
        "ranks/supervisor_main.py", "host/children.py")  # fmt: skip
"""What a supervisor is made of, beside all of ``cputune.inside``."""

TAIL_BYTES = 4096
ASK_SECONDS = 30.0


def send_modules(line: Line) -> str:
    """Send what a supervisor and its ranks load; the folder there that has it on the path."""
    package = root_directory() / "cputune"
    inside = [path.relative_to(package) for path in (package / "inside").rglob("*.py")]
    files = {
        f"lib/cputune/{name}": (package / name).read_bytes() for name in (*map(Path, SENT), *inside)
    }
    for folder in ("", "ranks/", "host/"):  # what stands in ours would load the whole house
        files[f"lib/cputune/{folder}__init__.py"] = b""
    return f"{line.put(files)}/lib"


class There:
    """A host as one runner sees it: a ``Place``."""

    def __init__(self, host: RankHost, post: Post) -> None:
        """Ranks there speak to ``post``. Raises HostLost."""
        self.name = host.name
        self.root: str | None = host.root
        self._line, self._own = host.line, host.own
        number = next(_NUMBERS)
        self.scratch = f"{self._line.folder}/{number}.scratch"
        self.kernels = f"{self._line.folder}/kernels"
        try:
            self.post = self._line.listen(f"{number}.socket", to=post.path)
        except CputuneError as error:
            raise HostLost(self.name, self._line.lost or str(error)) from error

    def start(
        self, environment: Mapping[str, str], modules: Sequence[str], work: WorkFolder
    ) -> ProcessThere:
        """Start a supervisor's process there; its files go when the line does."""
        assert self.root is not None
        return ProcessThere(self.name, self._line, environment, modules, self.root)

    def environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        """Our variables, but for those that only mean something on the machine that they are of."""
        kept = {name: value for name, value in ours.items() if name not in OWN_VARIABLES}
        return kept | {name: self._own[name] for name in OWN_VARIABLES if name in self._own}

    def command(self, ours: RankCommand) -> RankCommand:
        """A command in which our own files are those that were sent."""
        return {
            **ours,
            "argv": [self._moved(word) for word in ours["argv"]],
            "env": {name: self._moved(value) for name, value in ours["env"].items()},
        }

    def _moved(self, text: str) -> str:
        here = f"{root_directory()}/cputune/"
        return f"{self.root}/cputune/{text[len(here) :]}" if text.startswith(here) else text


class ProcessThere:
    """A supervisor's process on another host; see ``SupervisorProcess``."""

    def __init__(
        self,
        name: str,
        line: Line,
        environment: Mapping[str, str],
        modules: Sequence[str],
        root: str,
    ) -> None:
        self._name, self._line = name, line
        try:
            self._process = line.spawn(
                supervisor_command("{channel}", [], modules, root),
                env=supervisor_environment(environment, modules),
                cwd="/",
                log=f"supervisor-{next(_NUMBERS)}.log",
                channel=True,
            )
        except (OSError, CputuneError) as error:
            raise self._lost_or(Crashed(f"nothing can be started on {name}: {error}")) from error
        assert self._process.socket is not None
        self.socket = self._process.socket

    @property
    def alive(self) -> bool:
        """Whether it can start another plan."""
        return not self._has_ended(0.0)

    def stop_below(self) -> None:
        """Stop all that it has started. Where the line is lost the agent ends them all the same."""
        self._signal(signal.SIGSTOP)

    def continue_below(self) -> None:
        """Let what was stopped run again."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it, and what is below it."""
        self._ask("kill", pid=self._process.pid)

    def kill_stopped(self) -> None:
        """The agent ends what a supervisor leaves to it."""
        self._signal(signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after so many seconds at most; one of a lost host has."""
        return self._has_ended(seconds)

    def said(self) -> str:
        """The tail of what it wrote to its log."""
        return str(self._ask("tail", path=self._process.log, most=TAIL_BYTES) or "")

    def died(self) -> TrialError:
        """The error to raise where its line has been closed: its host may be lost."""
        return self._lost_or(
            Crashed(
                f"the process that starts the ranks on {self._name} died",
                details=self.said() or None,
            )
        )

    def cpu_seconds(self) -> float | None:
        """CPU time of all living processes below it."""
        seconds = self._ask("cpu_seconds", pid=self._process.pid)
        return float(seconds) if isinstance(seconds, (int, float)) else None

    def memory_kills(self) -> int | None:
        """How often the kernel there has killed for memory since it booted."""
        text = self._ask("read", path="/proc/vmstat")
        return kills_in(text) if isinstance(text, str) else None

    def _has_ended(self, seconds: float) -> bool:
        try:
            return self._process.wait(seconds) is not None
        except CputuneError:
            return True

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError, CputuneError):
            self._line.signal(self._process.pid, number)

    def _ask(self, what: str, **how: int | str) -> object:
        """What the agent answers; None where it cannot, or is lost."""
        try:
            return self._line.ask(what, seconds=ASK_SECONDS, **how)
        except (OSError, CputuneError):
            return None

    def _lost_or(self, error: TrialError) -> TrialError:
        lost = self._line.lost
        return error if lost is None else HostLost(self._name, lost)


_NUMBERS = count(1)
"""Names of sockets, folders and logs on a host: no two of one run are the same."""
