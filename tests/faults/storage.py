"""What a study is kept in fails: a full disk, a file that is removed, damaged or read-only."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from faults.outcome import Outcome
from faults.parents import LIGHT
from faults.watched import TUNE, Watched, judge


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


def study(
    place: Path, file: str, *words: str, budget: int = 8, until: Random | None = None
) -> Watched:
    """A study in this file that has begun; ``until`` a random moment after its first trial."""
    given = (*TUNE, "--budget", str(budget), "--study", file, *words, "--", *LIGHT)
    watched = Watched(place, given)
    if until is not None:
        watched.until("trial 0:")
        watched.wait(until.uniform(0.0, 1.0))
    return watched


def gone_on_with(
    watched: Watched, file: str, repair: Callable[[], object], expects: tuple[int, ...] = (0, 3)
) -> Outcome:
    """How it ended; then what was wrong is fixed, and the study is gone on with."""
    first = judge(watched, expects=expects, study=file, repair=repair)
    again = judge(study(watched.place, file, "--resume"), study=file)
    return Outcome(
        lost=first.lost + again.lost, left=first.left + again.left, why=first.why or again.why
    )


def full_for_the_result(place: Path, dice: Random) -> Outcome:
    """The study has room, and the result has not: its disk fills after the first trial."""
    with small_disk(place / "small", 1 << 20) as disk:
        if disk is None:
            return Outcome(tried=False)
        watched = study(place, "s.db", "-o", str(disk / "cputune.json"), until=dice)
        fill(disk)
        return gone_on_with(watched, "s.db", (disk / "filler").unlink, expects=(3,))


def full_for_the_study(place: Path, dice: Random) -> Outcome:
    """The disk of the study fills at a random moment after its first trial."""
    with small_disk(place / "small", 1 << 20) as disk:
        if disk is None:
            return Outcome(tried=False)
        watched = study(place, "small/s.db", until=dice)
        fill(disk)
        return gone_on_with(watched, "small/s.db", (disk / "filler").unlink)


def befallen(place: Path, dice: Random, befall: Callable[[Path], object]) -> Outcome:
    """Something befalls the file at a random moment: the study ends well, and says so."""
    watched = study(place, "s.db", until=dice)
    befall(place / "s.db")
    outcome = judge(watched, study="gone.db")
    said = "" if "cannot be written: the file is" in watched.written else "it was not said"
    return replace(outcome, why=outcome.why or said)


def removed(place: Path, dice: Random) -> Outcome:
    """Somebody removes the study's file."""
    return befallen(place, dice, Path.unlink)


def cut_off(place: Path, dice: Random) -> Outcome:
    """Somebody cuts the study's file off."""
    return befallen(place, dice, lambda file: os.truncate(file, dice.randrange(10_000)))


def read_only(place: Path, dice: Random) -> Outcome:
    """The study's file system becomes read-only at a random moment."""
    with small_disk(place / "small", 1 << 20) as disk:
        if disk is None:
            return Outcome(tried=False)
        watched = study(place, "small/s.db", until=dice)
        remount = ["mount", "-o", "remount"]
        # It is busy while a trial is written: once more, then.
        while subprocess.run([*remount, "-r", str(disk)], capture_output=True).returncode:
            if watched.wait(0.01) is not None:
                break
        writable = [*remount, "-w", str(disk)]
        return gone_on_with(watched, "small/s.db", lambda: subprocess.run(writable, check=True))


def damaged(place: Path, dice: Random) -> Outcome:
    """Some bytes of a study are others when it is gone on with: refused, or it goes on."""
    begun = judge(study(place, "s.db", budget=2), study="s.db")
    if begun.wrong:
        return begun
    data = bytearray((place / "s.db").read_bytes())
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(data))
        data[at : at + dice.randrange(1, 5000)] = os.urandom(dice.randrange(1, 5000))
    cut = data[: dice.randrange(1, len(data))] if dice.random() < 0.3 else data
    (place / "s.db").write_bytes(cut)
    watched = study(place, "s.db", "--force", "--resume")
    # What it holds now is anything: no record is looked for.
    return replace(judge(watched, expects=(0, 3), study="gone.db"), lost=0)


STORAGE = {
    "the disk of the result is full": full_for_the_result,
    "the disk of the study fills": full_for_the_study,
    "the study becomes read-only": read_only,
    "the study's file is removed": removed,
    "the study's file is cut off": cut_off,
    "the study's file is damaged": damaged,
}
