"""What a study is kept in fails: a full disk, a file that is locked, damaged or read-only."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from faults.outcome import Outcome
from faults.parents import LIGHT
from faults.watched import TUNE, Watched, on_record, told, traceback_in

BUDGET = ("--budget", "8")
LONGEST_SECONDS = 120.0
STUDY_BYTES = 150_000
"""A new study takes 120 kB; some trials later it wants more than this."""


@contextlib.contextmanager
def small_disk(place: Path, bytes_: int) -> Iterator[Path | None]:
    """A file system of its own in memory; None where this user cannot mount one."""
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={bytes_}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> None:
    """Leave no room."""
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 512)


def _judge(
    watched: Watched, study: Path, mend: Callable[[], None], *, expects: set[int]
) -> Outcome:
    """How it ended; then what was wrong is mended, and the study is gone on with."""
    ended = watched.wait(LONGEST_SECONDS)
    said = watched.said
    left = [*watched.left_behind(), *map(str, watched.folders())]
    if ended is None:
        watched.end()
    why = "" if ended in expects else f"ended with {ended}: {said[-800:]}"
    if traceback_in(said) or (ended and "hint:" not in said):
        why = said[-1500:]
    mend()
    words = (*TUNE, *BUDGET, "--resume", "--study", str(study), "--", *LIGHT)
    again = Watched(watched.place, words, warm=watched.warm)
    if again.wait(LONGEST_SECONDS) != 0:
        why = why or f"cannot be gone on with: {again.said[-800:]}"
        again.end()
    record = on_record(study)
    lost = len(told(said) - set(record)) + len(record) - len(set(record))
    left += again.left_behind()
    return Outcome(survived=not why, lost=lost, left=len(left), why=why or ", ".join(left))


def full_for_the_result(place: Path, dice: Random, *, warm: bool = False) -> Outcome:
    """The study has room, and the result has not."""
    place.mkdir(parents=True)
    with small_disk(place / "small", 64 << 10) as disk:
        if disk is None:
            return Outcome(tried=False)
        fill(disk)
        words = (*TUNE, *BUDGET, "--study", "s.db", "-o", str(disk / "cputune.json"))
        watched = Watched(place, (*words, "--", *LIGHT), warm=warm)
        return _judge(watched, place / "s.db", (disk / "filler").unlink, expects={3})


def full_for_the_study(place: Path, dice: Random, *, warm: bool = False) -> Outcome:
    """The disk of the study fills at a random moment after its first trial."""
    place.mkdir(parents=True)
    with small_disk(place / "small", 1 << 20) as disk:
        if disk is None:
            return Outcome(tried=False)
        words = (*TUNE, *BUDGET, "--study", str(disk / "s.db"), "--", *LIGHT)
        watched = Watched(place, words, warm=warm)
        watched.until("trial 0:")
        watched.wait(dice.uniform(0.0, 1.0))
        fill(disk)
        return _judge(watched, disk / "s.db", (disk / "filler").unlink, expects={0, 3})


def limited_files(place: Path, dice: Random, *, warm: bool = False) -> Outcome:
    """No file may grow beyond a limit (RLIMIT_FSIZE), which the study soon reaches."""
    place.mkdir(parents=True)
    most = STUDY_BYTES + dice.randrange(0, 30_000)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    words = (*TUNE, *BUDGET, "--study", "s.db", "--", *LIGHT)
    watched = Watched(place, words, limit=limit, warm=warm)
    return _judge(watched, place / "s.db", lambda: None, expects={0, 3})


def locked(place: Path, dice: Random, *, warm: bool = False) -> Outcome:
    """Another program holds the study's file at a random moment, for longer than is waited."""
    place.mkdir(parents=True)
    words = (*TUNE, *BUDGET, "--study", "s.db", "--", *LIGHT)
    watched = Watched(place, words, warm=warm)
    watched.until("trial 0:")
    watched.wait(dice.uniform(0.0, 1.0))
    with contextlib.closing(sqlite3.connect(place / "s.db", timeout=30)) as other:
        with contextlib.suppress(sqlite3.OperationalError):
            other.execute("begin exclusive")
        return _judge(watched, place / "s.db", other.rollback, expects={0, 3})


def read_only(place: Path, dice: Random, *, warm: bool = False) -> Outcome:
    """The study's file system becomes read-only at a random moment."""
    place.mkdir(parents=True)
    with small_disk(place / "small", 1 << 20) as disk:
        if disk is None:
            return Outcome(tried=False)
        words = (*TUNE, *BUDGET, "--study", str(disk / "s.db"), "--", *LIGHT)
        watched = Watched(place, words, warm=warm)
        watched.until("trial 0:")
        watched.wait(dice.uniform(0.0, 1.0))
        remount = ["mount", "-o", "remount"]
        # It is busy while SQLite writes: once more, then.
        while subprocess.run([*remount, "-r", str(disk)], capture_output=True).returncode:
            if watched.wait(0.01) is not None:
                break

        def writable() -> None:
            subprocess.run([*remount, "-w", str(disk)], check=True)

        return _judge(watched, disk / "s.db", writable, expects={0, 3})


def damaged(place: Path, dice: Random, *, warm: bool = False) -> Outcome:
    """Some bytes of a study are others when it is gone on with: refused, or it goes on."""
    place.mkdir(parents=True)
    study = place / "s.db"
    begun = Watched(place, (*TUNE, "--budget", "2", "--study", "s.db", "--", *LIGHT), warm=warm)
    begun.wait(LONGEST_SECONDS)
    if not study.exists():
        return Outcome(survived=False, why=f"nothing was begun: {begun.said[-800:]}")
    data = bytearray(study.read_bytes())
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(data))
        data[at : at + dice.randrange(1, 5000)] = os.urandom(dice.randrange(1, 5000))
    study.write_bytes(data[: dice.randrange(1, len(data))] if dice.random() < 0.3 else data)
    words = (*TUNE, *BUDGET, "--force", "--resume", "--study", "s.db", "--", *LIGHT)
    watched = Watched(place, words, warm=warm)
    ended = watched.wait(LONGEST_SECONDS)
    said = watched.said
    left = [*watched.left_behind(), *map(str, watched.folders())]
    fine = ended in (0, 3) and not traceback_in(said) and (ended == 0 or "hint:" in said)
    why = "" if fine else f"ended with {ended}: {said[-1500:]}"
    return Outcome(survived=fine, left=len(left), why=why or ", ".join(left))


STORAGE = {
    "the disk of the result is full": full_for_the_result,
    "the disk of the study fills": full_for_the_study,
    "files may not grow (RLIMIT_FSIZE)": limited_files,
    "another program locks the study": locked,
    "the study becomes read-only": read_only,
    "the study's file is damaged": damaged,
}
