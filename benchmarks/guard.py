"""How often does ``compare --fail-if-slower 5%`` fail a build? Asked of plans whose ratio is known.

    python benchmarks/guard.py                # some minutes
    python benchmarks/guard.py --studies 20

A failure is false where the second plan is not slower than the limit: at most 2.5 % of those
exactly at the limit may be called, since the interval is one of 95 %. Simulated machines: the steps
of a process scatter by 4 %, processes of one plan differ by 1, 3 or 5 %, and the machine wanders by
0, 5 or 10 %.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from aa import FACTS, PLAN, STEP_SECONDS, Planted
from machines import SimulatedRunner

from cputune.plans.workload import DEFAULT_RECIPE, Workload
from cputune.records.claims import Speedup
from cputune.records.shared_texts import slower_beyond, slower_by
from cputune.tuner.comparing import concluded, side_by_side
from cputune.tuner.measuring import Findings, Measuring, Timer
from cputune.tuner.race import Race

LIMIT = "5%"
RATIOS = (1.0, 0.97, 0.95, 0.9, 0.8)
PROCESSES = (0.01, 0.03, 0.05)
WANDER = (0.0, 0.05, 0.1)


def asked(ratio: float, processes: float, wander: float, seed: int) -> Speedup | None:
    """One comparison of a plan with one that is so many times as fast."""
    runner = SimulatedRunner(
        true=lambda plan: STEP_SECONDS,
        workload=Workload.from_recipe(DEFAULT_RECIPE),
        seed=seed,
        noise=0.04,
        delays=0.0,
        wander=wander,
        run_noise=processes,
    )
    planted = Planted(runner, PLAN, ratio, seed=seed)
    measuring = Measuring(
        facts=FACTS,
        race=Race(),
        findings=Findings(),
        timer=Timer(clock=lambda: planted.seconds, most_seconds=None, started=0.0),
        on_event=lambda event: None,
    )
    other = replace(PLAN, settings={"malloc": "kept"})
    side_by_side(measuring, PLAN, other, 2, lambda: Opened(planted))
    return concluded(measuring, PLAN, other).speedup


class Opened:
    """A runner that is open already."""

    def __init__(self, runner: Planted) -> None:
        self._runner = runner

    def __enter__(self) -> Planted:
        return self._runner

    def __exit__(self, *exc_info: object) -> None:
        pass


def main() -> None:
    """Print how many of the comparisons of each cell fail."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", type=int, default=100)
    studies = parser.parse_args().studies
    print(
        f"fails in % of {studies} with --fail-if-slower {LIMIT}; the second plan is RATIO as fast"
    )
    print(f"{'processes':>10}{'wander':>8}" + "".join(f"{ratio:>8}" for ratio in RATIOS))
    for processes in PROCESSES:
        for wander in WANDER:
            cells = []
            for ratio in RATIOS:
                told = [asked(ratio, processes, wander, seed) for seed in range(studies)]
                fails = sum(slower_beyond(one, slower_by(LIMIT)) for one in told)
                cells.append(f"{100 * fails / studies:>8.1f}")
            print(f"{processes:>10.0%}{wander:>8.0%}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
