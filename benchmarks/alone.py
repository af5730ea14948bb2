"""Is the stated factor that of the launches alone? The baseline and the best plan, one at a time.

    python benchmarks/alone.py RESULT.json [RESULT.json ...] [--starts 6] [--steps 20]

Runs the baseline and the best plan of each stored result with no neighbours, in the order ABBA,
each time in new processes that are started as an emitted launch starts them. A result of a script
is run in the folder in which it was tuned. The first steps (WARMUP) do not count; the mean seconds
per sample of those after them is what a start says of its plan. Nothing here is of the model with
which `tune` states its factor.

Prints a Markdown table: the ratio of the two alone with a 95 % interval over starts (Welch), the
stated factor, and how far that is above the ratio. Needs a quiet machine; a start of each plan
takes some ten seconds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean, variance

from turns import table

import cputune
from cputune.host.facts import HostFacts
from cputune.plans.plan import Plan
from cputune.ranks.runner import ProcessRunner
from cputune.records.result import Result
from cputune.records.steps import NoMeasurement, TrialError
from cputune.tuner.gains import students_quantile

WARMUP = 8
"""First steps of a start, which do not count: later rounds of a comparison begin after as many."""


def main() -> int:
    """Print the table; 1 if a plan did not run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--starts", type=int, default=6, help="of each plan (2 or more)")
    parser.add_argument("--steps", type=int, default=20, help="of each start that count")
    options = parser.parse_args()
    if options.starts < 2 or options.steps < 1:
        parser.error("an interval needs two starts, and a start one step")
    facts = cputune.probe()
    rows, failed = {}, False
    for path in options.results:
        try:
            rows[path.name] = compared(Result.load(path), facts, options.starts, options.steps)
        except TrialError as error:
            failed = True
            rows[path.name] = (str(error), "", "")
    print(table(rows, ("result", "alone, × (95 %)", "stated, × (95 %)", "stated is above by")))
    return int(failed)


def compared(result: Result, facts: HostFacts, starts: int, steps: int) -> tuple[str, str, str]:
    """The ratio alone, the stated factor, and how far that is above it."""
    slow, fast = [], []
    with ProcessRunner(result.workload, facts, fresh=True) as runner:
        for at in range(starts):
            sides = [(result.baseline.plan, slow), (result.best.plan, fast)]
            if at % 2:
                sides.reverse()
            for plan, logs in sides:
                logs.append(log_of_start(runner, plan, steps))
                print(f"{plan.describe()}: {math.exp(-logs[-1]):.2f} samples/s", file=sys.stderr)
    center, half = difference(slow, fast)
    alone = as_text(math.exp(center), math.exp(center - half), math.exp(center + half))
    speedup = result.speedup
    if speedup is None:
        return alone, f"none: {result.not_compared}", ""
    above = 100 * (speedup.ratio / math.exp(center) - 1)
    return alone, as_text(speedup.ratio, speedup.low, speedup.high), f"{above:+.1f} %"


def log_of_start(runner: ProcessRunner, plan: Plan, steps: int) -> float:
    """Log seconds per sample of new processes of a plan, after their warm-up.

    Of a script that ends before as many steps those that it took count. Raises TrialError.
    """
    taken = []
    running = runner.steps(plan)
    try:
        for step in islice(running, WARMUP + steps):
            taken.append(step)
    except NoMeasurement:
        if len(taken) <= WARMUP:
            raise
    finally:
        running.close()
    counted = taken[WARMUP:]
    return math.log(sum(step.seconds for step in counted) / sum(step.samples for step in counted))


def difference(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float]:
    """The difference of two means, and half of its 95 % interval (Welch 1947)."""
    shares = [variance(logs) / len(logs) for logs in (slow, fast)]
    below = sum(share**2 / (len(slow) - 1) for share in shares)
    if below == 0:
        return fmean(slow) - fmean(fast), 0.0
    freedom = sum(shares) ** 2 / below
    half = students_quantile(0.975, freedom) * math.sqrt(sum(shares))
    return fmean(slow) - fmean(fast), half


def as_text(ratio: float, low: float, high: float) -> str:
    """A ratio with its interval."""
    return f"{ratio:.3f} ({low:.3f}–{high:.3f})"


if __name__ == "__main__":
    sys.exit(main())
