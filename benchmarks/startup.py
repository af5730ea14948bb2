"""Does a forked rank run as fast as a fresh process, and what does it save?

    python benchmarks/startup.py [--rounds 3] [--steps 8]

The default recipe is run on all cores, in turn forked of a process that has imported the
training stack and as plain new processes, interleaved. Prints two ratios: step times
(forked / fresh, with the range over rounds; 1 means that forking changes nothing) and
time to the first step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import closing
from itertools import islice

import cputune
from cputune.plans.cores import usable_cores
from cputune.plans.knobs.precision import native_precisions
from cputune.plans.layout import make_plan
from cputune.plans.plan import Plan
from cputune.plans.workload import DEFAULT_RECIPE, Workload
from cputune.ranks.runner import ProcessRunner

QUIET = 0.1
"""Steps of which others took more than this share are left out."""


def run(runner: ProcessRunner, plan: Plan, steps: int) -> tuple[float, float]:
    """Seconds to the first step, and the median of the later half of the steps."""
    started = time.perf_counter()
    with closing(runner.steps(plan)) as iterator:  # type: ignore[type-var]
        taken = [next(iterator)]
        first = time.perf_counter() - started
        taken += islice(iterator, steps - 1)
    later = taken[len(taken) // 2 :]
    quiet = [s.seconds for s in later if s.delayed_seconds < QUIET * s.seconds]
    return first, statistics.median(quiet or [s.seconds for s in later])


def main() -> None:
    """Run both ways in turn and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()

    facts = cputune.probe()
    job = Workload.from_recipe(DEFAULT_RECIPE)
    cores = usable_cores(facts)
    plans = [make_plan(cores, 1, precision=native_precisions(facts)[0])]
    if len(cores) > 1:
        plans.append(make_plan(cores, 2, precision=native_precisions(facts)[0]))
    with ProcessRunner(job, facts) as forked, ProcessRunner(job, facts, fresh=True) as fresh:
        for plan in plans:
            run(forked, plan, 2)  # the import is paid here, once
            pairs = []
            for _ in range(options.rounds):
                pairs.append((run(forked, plan, options.steps), run(fresh, plan, options.steps)))
            steps = [a[1] / b[1] for a, b in pairs]
            starts = [a[0] / b[0] for a, b in pairs]
            print(plan.describe())
            print(
                f"  step time, forked / fresh: {statistics.median(steps):.3f} "
                f"({min(steps):.3f} to {max(steps):.3f})"
            )
            print(
                f"  time to the first step, forked / fresh: {statistics.median(starts):.2f} "
                f"({statistics.median(a[0] for a, _ in pairs):.2f} s "
                f"against {statistics.median(b[0] for _, b in pairs):.2f} s)"
            )


if __name__ == "__main__":
    main()
