"""A real ``cputune``, watched from outside: how it ends, what it says, what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from faults.outcome import Outcome

HERE = Path(__file__).resolve().parent
MARK = "CPUTUNE_WATCHED"
TUNE = ("tune", "--share-machine")
"""Several studies run beside each other here, and their figures do not count."""

PATIENCE = float(os.environ.get("FAULTS_PATIENCE", "1"))
"""How many times longer than on a usual machine is waited: in an emulated guest, say."""

LONGEST_SECONDS = 400.0 * PATIENCE

GONE_SECONDS = 8.0 * PATIENCE
"""So long may what was started outlive a parent that was killed."""

_PROBE = re.compile(r"[a-z0-9_]{8}")

TIDY = {"HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "XDG_STATE_HOME": "/dev/null/state"}
"""Nothing is fetched, nothing is coloured, and no study goes into the user's own history."""


@dataclass
class Watched:
    """One process of ``cputune``, in a session of its own, its words in files.

    Attributes:
        place: the working folder; TMPDIR is ``tmp`` below it.
        environment: variables beside those of this process.
        limit: called in the new process before it begins.
    """

    place: Path
    words: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    limit: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        (self.place / "tmp").mkdir(parents=True, exist_ok=True)
        self.mark = f"{self.place}-{time.monotonic_ns()}"
        outer = {**os.environ, **TIDY, **self.environment}
        with (self.place / "stdout").open("wb") as out, (self.place / "stderr").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cputune", *self.words],
                cwd=self.place,
                env={**outer, MARK: self.mark, "TMPDIR": str(self.place / "tmp")},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=self.limit,
            )

    @property
    def written(self) -> str:
        """What it has written to stderr so far."""
        return (self.place / "stderr").read_text(errors="replace")

    def advises(self) -> bool:
        """Whether it has said what to do now: as the hint of an error, or in a report without a
        comparison."""
        report = (self.place / "stdout").read_text(errors="replace")
        return "hint:" in self.written or ("Not compared" in report and "\nDo now: " in report)

    def until(self, text: str, seconds: float = 120.0 * PATIENCE) -> bool:
        """Wait until it has said this; False where it has ended without, or time is up."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if text in self.written:
                return True
            if self.process.poll() is not None:
                return text in self.written
            time.sleep(0.01)
        return False

    def wait(self, seconds: float) -> int | None:
        """How it ended; None where it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def tell(self, number: int) -> None:
        """Send it a signal, and it alone."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def alive(self) -> list[psutil.Process]:
        """What it started and still runs, itself included."""
        return [p for p in psutil.process_iter() if self._is_ours(p)]

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return False
            return process.pid == self.process.pid or process.environ().get(MARK) == self.mark
        return False

    def left_behind(self) -> list[str]:
        """The processes that outlive it, by their commands; they are then ended."""
        deadline = time.monotonic() + GONE_SECONDS
        while (alive := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.05)
        left = []
        for process in alive:
            with contextlib.suppress(psutil.Error, OSError):
                left.append(" ".join(process.cmdline())[-200:])
                process.send_signal(signal.SIGKILL)
        return left

    def folders(self) -> set[Path]:
        """What of its temporary files is there, once its processes are gone.

        ``torchinductor_USER`` is a cache of torch, as without us; and CPython tries a folder
        with a file of eight characters, which holds ``blat`` (``tempfile._get_default_tempdir``).
        """
        found = set((self.place / "tmp").iterdir()) - set((self.place / "tmp").glob("torchind*"))
        found -= set(self.results())
        return {path for path in found if not _PROBE.fullmatch(path.name)}

    def results(self) -> list[Path]:
        """The result that it has written, where it was told to or where it could."""
        return [*self.place.glob("cputune.json"), *(self.place / "tmp").glob("cputune-*.json")]

    def end(self) -> None:
        """End it and all of it, whatever it does."""
        for process in self.alive():
            with contextlib.suppress(psutil.Error, OSError):
                process.kill()
        self.process.wait()


def judge(
    watched: Watched,
    *,
    expects: tuple[int, ...] = (0,),
    study: str = "cputune.db",
    repair: Callable[[], object] = lambda: None,
) -> Outcome:
    """How it ended, against what is documented; ``repair`` is called before its study is read."""
    ended, said = watched.wait(LONGEST_SECONDS), watched.written
    if ended is None:
        watched.end()
    left = (*watched.left_behind(), *map(str, watched.folders()))
    repair()
    record = on_record(watched.place / study)
    kept = set(record)
    if "cannot be written" in said:  # then they are in the result
        for path in watched.results():
            kept |= {trial["number"] for trial in json.loads(path.read_text())["trials"]}
    lost = len(told(said) - kept) + len(record) - len(set(record))
    fine = ended in expects and not traceback_in(said) and (ended == 0 or watched.advises())
    why = "" if fine else f"ended with {ended}: {said[-1500:]}"
    return Outcome(lost=lost, left=left, why=why)


def told(said: str) -> set[int]:
    """The numbers of the trials that it has told of as ended; those run again have not."""
    ended = re.findall(r"^trial (\d+): (?!.*so it is run again$)", said, re.MULTILINE)
    return {int(number) for number in ended}


def on_record(study: Path) -> list[int]:
    """The numbers of the trials in a study's file, in order."""
    if not study.exists():
        return []
    numbers = []
    for line in study.read_bytes().splitlines():
        with contextlib.suppress(ValueError):  # half a line, or a damaged one
            document = json.loads(line).get("user_attrs", {}).get("cputune.trial")
            if document is not None:
                numbers.append(int(document["trial"]["number"]))
    return sorted(numbers)


def traceback_in(said: str) -> bool:
    """Whether a traceback of ours was shown; a rank's own stands behind its reason."""
    return "Traceback (most recent call last)" in said
