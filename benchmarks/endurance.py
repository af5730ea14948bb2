"""Eight hours of tuning in simulated time: what grows with them? A line for each half hour.

    python benchmarks/endurance.py            # a quarter of an hour
    python benchmarks/endurance.py --hours 2

The study is that of load.py, kept in a file; its steps are drawn from a model, and the
time is theirs. Memory (RSS) may grow by what a trial on record takes and no more; descriptors
and threads may not grow at all.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from load import JOB, LARGE, OPTIONS
from machines import Model, simulated

import cputune
from cputune.tuner.events import Event, TrialEnded

HOUR = 3600.0

SLOW = simulated("slow", LARGE.facts, Model(work=480, bandwidth=8), noise=0.03)
"""Steps of some seconds, as those of a large model: trials of half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What this process holds after so many trials."""

    trials: int
    memory_bytes: int
    descriptors: int
    threads: int


def held(trials: int) -> Held:
    """What this process holds now."""
    me = psutil.Process()
    with me.oneshot():
        return Held(
            trials=trials,
            memory_bytes=me.memory_info().rss,
            descriptors=me.num_fds(),
            threads=me.num_threads(),
        )


def endure(study: Path, seconds: float, every: float, tell: Callable[[Held], None]) -> None:
    """Tune for so long; tell what is held each time that so many simulated seconds are over."""
    passed = told = 0.0

    def on_event(event: Event) -> None:
        nonlocal passed, told
        if isinstance(event, TrialEnded):
            passed += event.trial.step_seconds
            if passed >= told + every:
                told += every
                tell(held(event.trial.number + 1))

    cputune.tune(
        JOB,
        facts=SLOW.facts,
        runner=SLOW.runner(0),
        study=study,
        budget=1_000_000,
        max_time_seconds=seconds,
        share_machine=True,
        on_event=on_event,
        **OPTIONS,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=float, default=8.0)
    hours = parser.parse_args().hours
    print(f"{'trials':>8}{'MB':>8}{'descriptors':>13}{'threads':>9}")

    def tell(now: Held) -> None:
        size = now.memory_bytes / 1e6
        print(f"{now.trials:8}{size:8.0f}{now.descriptors:13}{now.threads:9}", flush=True)

    with tempfile.TemporaryDirectory(prefix="cputune-endurance-") as folder:
        endure(Path(folder) / "cputune.db", hours * HOUR, HOUR / 2, tell)


if __name__ == "__main__":
    main()
