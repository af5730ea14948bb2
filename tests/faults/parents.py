"""The parent is ended by a signal at a random moment, and gone on with, in a chain."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from faults.outcome import Outcome
from faults.watched import HERE, TUNE, Watched, on_record, told, traceback_in

LIGHT = (str(HERE / "light.py"),)
TORCH = (str(HERE / "accelerate_script.py"),)
SIGNALS = (
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGXCPU,
)
AGAIN_SECONDS = 1.0
"""A second Ctrl-C comes at a random moment within it: to save takes about as long."""

LATE_SECONDS = 3.5
"""The latest moment of a signal from the confirmation on, which takes about as long."""

SLOW_SECONDS = 60.0

_READ_FIRST = ("__init__", "__main__", "start")


@dataclass
class Chain:
    """One study after another, each ended and resumed until it is finished.

    Attributes:
        place: an empty folder; each study has one of its own below it.
        longest_seconds: the latest moment of a signal.
        late: the moment is counted from the beginning of the confirmation, so that it, the
            writing of the result and the end of the process are hit.
        again: it is sent a second time, while the first is obeyed.
    """

    place: Path
    script: tuple[str, ...]
    number: signal.Signals
    dice: Random
    longest_seconds: float
    late: bool = False
    again: bool = False
    _studies: int = 0
    _told: set[int] = field(default_factory=set)
    _folders: set[Path] = field(default_factory=set)

    def tries(self) -> Iterator[Outcome]:
        """For ever: a signal, and what became of it."""
        while True:
            self._studies += 1
            folder = self.place / f"study-{self._studies}"
            folder.mkdir(parents=True)
            self._told, self._folders = set(), set()
            while (outcome := self._try(folder)) is not None:
                yield outcome
                if outcome.why:
                    break  # what follows would tell of the same again

    def _try(self, folder: Path) -> Outcome | None:
        """Start or resume, and send the signal; None where a study came to its own end."""
        again = ("--resume",) if (folder / "cputune.db").exists() else ()
        words = (*TUNE, "--budget", "12", *again, "--force", "--", *self.script)
        watched = Watched(folder, words)
        if self.late:
            watched.until("side by side", SLOW_SECONDS)
        ended = watched.wait(self.dice.uniform(0.0, self.longest_seconds))
        signalled = ended is None
        if signalled:
            watched.tell(self.number)
            if self.again and watched.wait(self.dice.uniform(0.0, AGAIN_SECONDS)) is None:
                watched.tell(self.number)
            ended = watched.wait(SLOW_SECONDS)
        said = watched.written
        self._told |= told(said)
        if ended is None:
            watched.end()
        left = (*watched.left_behind(), *self._stale_folders(watched))
        record = on_record(folder / "cputune.db")
        outcome = Outcome(
            lost=len(self._told - set(record)) + len(record) - len(set(record)),
            left=left,
            why=self._complaint(ended, said, folder),
        )
        return outcome if signalled or outcome.wrong else None

    def _complaint(self, ended: int | None, said: str, folder: Path) -> str:
        """What is not as documented, or nothing."""
        if ended is None:
            return "still runs"
        if self.number == signal.SIGINT and "KeyboardInterrupt" in said and not reached_us(said):
            return ""  # CPython shows where it was; nothing had begun
        if traceback_in(said):
            return said[-2000:]
        if ended == 0:
            return ""  # the signal came after the end of the study
        if self.number == signal.SIGKILL:
            return "" if ended == -signal.SIGKILL else f"ended with {ended}: {said[-500:]}"
        if ended == -self.number and not said:
            return ""  # it came before Python had begun
        if ended != 130:
            return f"ended with {ended}: {said[-500:]}"
        if "interrupted twice" in said:
            return ""  # it has saved nothing, and its study goes on
        if "round" in said and not traceback_in(said) and (folder / "cputune.json").exists():
            return ""  # it came when all was written and said
        if told(said) and "--resume" not in said:
            return f"says not how to go on: {said[-500:]}"
        if told(said) and not (folder / "cputune.json").exists():
            return "wrote no cputune.json"
        return ""

    def _stale_folders(self, watched: Watched) -> list[str]:
        """Temporary folders that a later run has passed over, which came to run trials."""
        now = watched.folders()
        stale = now & self._folders if told(watched.written) else set()
        self._folders = now - stale  # a run that is killed early has not come to look
        return [str(path) for path in stale]


def reached_us(said: str) -> bool:
    """Whether an interrupt came when our handlers should have been there.

    ``start.main`` sets them before all else. Until then Python reads three modules, and no function
    of ours has run.
    """
    frames = re.findall(r'File ".*/cputune/(?!tests/)([\w/]+)\.py", line \d+, in (\S+)', said)
    return any(file not in _READ_FIRST or where != "<module>" for file, where in frames)
