"""Every fault, tried often, as a table."""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from random import Random

from faults.machine import MACHINE
from faults.outcome import HEAD, Outcome, Tries, row
from faults.parents import LIGHT, SIGNALS, TORCH, Chain
from faults.storage import STORAGE
from faults.struck import HANGS, STRIKES, strike
from faults.warm import warm_up

CHAIN = 10
"""Signals of one chain; chains of one signal run beside each other."""

COLD_SHARE = 5
"""One chain in so many begins cold, so that imports are hit too."""

LATE_SHARE = 4
"""One chain in so many sends its signals from the confirmation on."""

LIGHT_SECONDS, COLD_SECONDS, TORCH_SECONDS, LATE_SECONDS = 3.0, 4.5, 11.0, 3.5
"""The latest moment of a signal: a study of each kind, and a confirmation, take about as long."""


def chain(
    place: Path,
    script: tuple[str, ...],
    number: int,
    seed: int,
    count: int,
    longest: float,
    again: bool = False,
) -> list[Outcome]:
    """So many signals to studies of this script, in a worker that is warm."""
    warm, late = longest != COLD_SECONDS, longest == LATE_SECONDS
    sent = Chain(place, script, signal.Signals(number), Random(seed), longest, warm, late, again)
    return list(itertools.islice(sent.tries(), count))


def once(kind: str, name: str, place: Path, seed: int) -> list[Outcome]:
    """One fault of a rank, of the storage or of the machine."""
    if kind == "rank":
        return [strike(name, place, warm=True)]
    faults = {**STORAGE, **MACHINE}
    return [faults[name](place, Random(seed), warm=True)]


def timed(work: Callable[..., list[Outcome]], *arguments: object) -> Tries:
    """What came of this work, and what it took, in a worker."""
    wall, cpu = time.monotonic(), _cpu_seconds()
    outcomes = work(*arguments)
    took = time.monotonic() - wall, _cpu_seconds() - cpu
    return Tries(outcomes=outcomes, seconds=took[0], cpu_seconds=took[1])


def _cpu_seconds() -> float:
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def main() -> int:
    """Run the table; its rows are printed as they are full."""
    given = _arguments()
    started = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    rows: dict[str, list[Future[Tries]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as folder,
        ProcessPoolExecutor(given.workers, mp_context=spawn, initializer=warm_up) as pool,
    ):
        places = (Path(folder) / str(number) for number in itertools.count())
        seeds = itertools.count(given.seed)

        def plan(name: str, work: Callable[..., list[Outcome]], *arguments: object) -> None:
            rows.setdefault(name, []).append(pool.submit(timed, work, *arguments))

        for fault, name in HANGS.items():  # a minute of waiting each, so they are first
            for _ in range(given.hangs):
                plan(name, once, "rank", fault, next(places), next(seeds))
        for number in SIGNALS:
            kinds = ((LIGHT, given.light, LIGHT_SECONDS), (TORCH, given.torch, TORCH_SECONDS))
            for script, total, longest in kinds:
                name = (
                    f"{number.name} at a random moment, {'torch' if script == TORCH else 'light'}"
                )
                for begin in range(0, total, CHAIN):
                    seconds = longest
                    if script == LIGHT and begin // CHAIN % COLD_SHARE == 0:
                        seconds = COLD_SECONDS
                    elif script == LIGHT and begin // CHAIN % LATE_SHARE == 1:
                        seconds = LATE_SECONDS
                    count = min(CHAIN, total - begin)
                    plan(name, chain, next(places), script, number, next(seeds), count, seconds)
        for number in range(given.twice):
            seconds = LATE_SECONDS if number % 2 else LIGHT_SECONDS
            sent = (LIGHT, signal.SIGINT, next(seeds), 1, seconds, True)
            plan("SIGINT, and again while that is obeyed", chain, next(places), *sent)
        for fault, name in STRIKES.items():
            for _ in range(given.times):
                plan(name, once, "rank", fault, next(places), next(seeds))
        for name in (*STORAGE, *MACHINE):
            for _ in range(given.times):
                plan(name, once, "other", name, next(places), next(seeds))
        wrong = _print(rows)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    sys.stderr.write(
        f"{time.monotonic() - started:.0f} s, {spent.ru_utime + spent.ru_stime:.0f} s of CPU, "
        f"seed {given.seed}\n"
    )
    return 1 if wrong else 0


def _print(rows: dict[str, list[Future[Tries]]]) -> int:
    """Print the table and, below it, what was wrong; how many tries that were."""
    wrong: list[tuple[str, str]] = []
    print(HEAD, flush=True)
    for name, futures in rows.items():
        tries = [future.result() for future in futures]
        print(row(name, tries), flush=True)
        wrong += [
            (name, outcome.why)
            for some in tries
            for outcome in some.outcomes
            if outcome.tried and (not outcome.survived or outcome.lost or outcome.left)
        ]
    for name, why in wrong:
        print(f"\n{name}: {json.dumps(why)}")
    return len(wrong)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults")
    parser.add_argument("--light", type=int, default=40, help="signals of each kind")
    parser.add_argument("--torch", type=int, default=6, help="the same, to torch")
    parser.add_argument("--twice", type=int, default=15, help="Ctrl-C and Ctrl-C again")
    parser.add_argument("--times", type=int, default=3, help="tries of each other fault")
    parser.add_argument("--hangs", type=int, default=2, help="tries of each fault of a minute")
    parser.add_argument("--workers", type=int, default=4, help="studies beside each other")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    return parser.parse_args()
