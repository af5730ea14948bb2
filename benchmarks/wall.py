"""Wall time of a whole tune beside a search of fixed-length trials in fresh processes.

    python benchmarks/wall.py [--budget 20] [--recipe bert-mini]

First ``cputune.tune`` with its confirmation, then what HyperTune does with the same budget: the
plans of the space in order (again from the start where there are fewer), each in plain new
processes, for 3 + 10 steps. Prints both times and their ratio. Needs a quiet machine; the second
half alone takes some minutes.
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from itertools import cycle, islice

import cputune
from cputune.plans.workload import DEFAULT_RECIPE
from cputune.ranks.runner import ProcessRunner
from cputune.records.shared_texts import verdict_of
from cputune.records.steps import TrialError

WARMUP, STEPS = 3, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=20)
    parser.add_argument("--recipe", default=DEFAULT_RECIPE)
    arguments = parser.parse_args()
    facts = cputune.probe()
    job = cputune.Workload.from_recipe(arguments.recipe)
    plans = list(cputune.search_space(facts, job).plans())

    started = time.perf_counter()
    result = cputune.tune(job, facts=facts, budget=arguments.budget)
    ours = time.perf_counter() - started
    print(f"cputune tune: {ours:.0f} s, {len(result.trials)} trials and the confirmation")
    print(f"  best: {result.best.plan.describe()}; {verdict_of(result, 'cputune run').means}")

    started = time.perf_counter()
    runner = ProcessRunner(job, facts, fresh=True)
    for plan in islice(cycle(plans), arguments.budget):
        try:
            with closing(runner.steps(plan)) as steps:  # type: ignore[type-var]
                for _ in islice(steps, WARMUP + STEPS):
                    pass
        except TrialError as error:
            print(f"  {plan.describe()}: {error}")
    runner.close()
    fixed = time.perf_counter() - started
    print(f"{arguments.budget} fresh processes of {WARMUP} + {STEPS} steps: {fixed:.0f} s")
    print(f"ratio: {ours / fixed:.2f}")


if __name__ == "__main__":
    main()
