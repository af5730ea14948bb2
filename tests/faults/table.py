"""Every fault, tried often, as a table."""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from random import Random

from faults.machine import MACHINE
from faults.outcome import HEAD, Outcome, row
from faults.parents import LATE_SECONDS, LIGHT, SIGNALS, TORCH, Chain
from faults.storage import STORAGE
from faults.struck import HANGS, STRIKES, strike

CHAIN = 10
"""Signals of one chain; chains of one signal run beside each other."""

LIGHT_SECONDS, TORCH_SECONDS = 6.0, 14.0
"""The latest moment of a signal: a study of each kind takes about as long."""


def chain(count: int, sent: Chain) -> list[Outcome]:
    """So many signals to studies, one after the other."""
    return list(itertools.islice(sent.tries(), count))


def once(name: str, place: Path, seed: int) -> list[Outcome]:
    """One fault of a rank, of the storage or of the machine."""
    if name in {**STRIKES, **HANGS}:
        return [strike(name, place)]
    return [{**STORAGE, **MACHINE}[name](place, Random(seed))]


def main() -> int:
    """Run the table; its rows are printed as they are full."""
    given = _arguments()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):  # nohup and `&` have children ignore them
        signal.signal(number, signal.SIG_DFL)
    rows: dict[str, list[Future[list[Outcome]]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as folder,
        ProcessPoolExecutor(given.workers) as pool,
    ):
        places = (Path(folder) / str(number) for number in itertools.count())
        seeds = itertools.count(given.seed)

        def plan(name: str, work: Callable[..., list[Outcome]], *arguments: object) -> None:
            rows.setdefault(name, []).append(pool.submit(work, *arguments))

        for fault, name in HANGS.items():  # a minute of waiting each, so they are first
            for _ in range(given.hangs):
                plan(name, once, fault, next(places), next(seeds))
        for number, (script, total, longest) in itertools.product(
            SIGNALS, ((LIGHT, given.light, LIGHT_SECONDS), (TORCH, given.torch, TORCH_SECONDS))
        ):
            kind = "torch" if script == TORCH else "light"
            for begin in range(0, total, CHAIN):
                late = script == LIGHT and begin // CHAIN % 2 == 1
                seconds = LATE_SECONDS if late else longest
                sent = Chain(next(places), script, number, Random(next(seeds)), seconds, late)
                name = f"{number.name} at a random moment, {kind}"
                plan(name, chain, min(CHAIN, total - begin), sent)
        for number in range(given.twice):
            late = number % 2 == 1
            seconds = LATE_SECONDS if late else LIGHT_SECONDS
            dice = Random(next(seeds))
            sent = Chain(next(places), LIGHT, signal.SIGINT, dice, seconds, late, again=True)
            plan("SIGINT, and again while that is obeyed", chain, 1, sent)
        for fault, name in (*STRIKES.items(), *((one, one) for one in (*STORAGE, *MACHINE))):
            for _ in range(given.times):
                plan(name, once, fault, next(places), next(seeds))
        return 1 if _print(rows) else 0


def _print(rows: dict[str, list[Future[list[Outcome]]]]) -> int:
    """Print the table and, below it, what was wrong; how many tries that were."""
    wrong = []
    print(HEAD, flush=True)
    for name, futures in rows.items():
        outcomes = [outcome for future in futures for outcome in future.result()]
        print(row(name, outcomes), flush=True)
        wrong += [f"{name}: {outcome.wrong!r}" for outcome in outcomes if outcome.wrong]
    print(*wrong, sep="\n\n")
    return len(wrong)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults")
    parser.add_argument("--light", type=int, default=20, help="signals of each kind")
    parser.add_argument("--torch", type=int, default=6, help="the same, to torch")
    parser.add_argument("--twice", type=int, default=15, help="Ctrl-C and Ctrl-C again")
    parser.add_argument("--times", type=int, default=3, help="tries of each other fault")
    parser.add_argument("--hangs", type=int, default=2, help="tries of each fault of a minute")
    parser.add_argument("--workers", type=int, default=4, help="studies beside each other")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    given = parser.parse_args()
    sys.stderr.write(f"seed {given.seed}\n")
    return given
