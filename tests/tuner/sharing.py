"""A tuner in a process of its own, that says what it measures: for tests of shared studies.

``python -m tuner.sharing ADDRESS FOLDER NAME SPEED BUDGET TOGETHER GRACE [STUCK]``: it appends to
FOLDER/log which plan begins and ends, and waits before its first trial until TOGETHER tuners are
there. In the first of its trials from number STUCK on it hangs until there is FOLDER/go. Its
machine is SPEED times as fast as another; a tuner that is silent for GRACE seconds is dead to it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.fakes import BY_NAME

import cputune
from cputune.plan import Plan
from cputune.steps import Step
from cputune.tuner import database, sampler, shared
from cputune.tuner.events import Event, TrialEnded, TrialStarted

MACHINE = BY_NAME["one-socket"]
NEVER = 1_000
HERE = Path(__file__).parent


def say(folder: Path, *words: object) -> None:
    """One line, whole: several processes write."""
    file = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(map(str, words)) + "\n").encode())
    os.close(file)


def said(folder: Path, *words: str) -> list[list[str]]:
    """The lines of the log that hold these words."""
    path = folder / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split() for line in lines if set(words) <= set(line.split())]


def until(what: object, *, seconds: float = 120) -> None:
    """Wait until it is so."""
    end = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


@contextmanager
def start(
    folder: Path, address: str, name: str, *more: object, budget: int = 12, together: int = 1,
    speed: float = 1.0, grace: int = 60, **variables: str,
) -> Iterator[subprocess.Popen[str]]:  # fmt: skip
    """A tuner that writes FOLDER/NAME.json; it is gone when the block is over."""
    words = (address, folder, name, speed, budget, together, grace, *more)
    paths = [HERE.parent, HERE.parent.parent / "benchmarks", HERE.parent.parent]
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tuner.sharing", *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as tuner:
        try:
            yield tuner
        finally:
            tuner.kill()


def succeed(tuner: subprocess.Popen[str]) -> None:
    """Wait until a tuner has ended well."""
    _, words = tuner.communicate(timeout=120)
    assert tuner.returncode == 0, words


class FakeMachine:
    """Makes steps, and hangs where it is told to."""

    def __init__(self, speed: float, go_on: Path) -> None:
        self.speed = speed
        self.go_on = go_on
        self.is_stuck = False

    def steps(self, plan: Plan) -> Iterator[Step]:
        while self.is_stuck and not self.go_on.exists():
            time.sleep(0.05)
        step = Step(seconds=MACHINE.seconds(plan) / self.speed, samples=8)
        while True:
            time.sleep(0.02)
            yield step


def main(
    address: str,
    folder: Path,
    name: str,
    speed: float,
    budget: int,
    together: int,
    grace: int,
    stuck: int,
) -> None:
    database.BEAT_SECONDS = database.BEAT_SECONDS = 1
    database.GRACE_SECONDS = shared.GRACE_SECONDS = grace
    sampler.LEAST_PROMISE = 0.0  # the whole budget is measured
    machine = FakeMachine(speed, folder / "go")
    plans = list(cputune.search_space(MACHINE.facts, MACHINE.workload).plans())

    def index(plan: Plan) -> object:
        return "today" if plan.as_found else plans.index(plan)

    def hear(event: Event) -> None:
        if isinstance(event, TrialStarted):
            say(folder, name, "begins", index(event.plan))
            until(lambda: len(said(folder, "begins", "today")) >= together)
            machine.is_stuck = event.number >= stuck
            if machine.is_stuck:
                say(folder, name, "stuck", index(event.plan))
        if isinstance(event, TrialEnded) and not event.trial.elsewhere:
            say(folder, name, "ends", index(event.trial.plan))

    result = cputune.tune(
        MACHINE.workload,
        facts=MACHINE.facts,
        runner=machine,
        storage=address,
        budget=budget,
        on_event=hear,
    )
    result.save(folder / f"{name}.json")


if __name__ == "__main__":
    address, folder, name, speed, budget, together, grace, *stuck = sys.argv[1:]
    main(
        address, Path(folder), name, float(speed), int(budget), int(together), int(grace),
        int(stuck[0]) if stuck else NEVER,
    )  # fmt: skip
