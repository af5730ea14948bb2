"""What a larger machine would gain, and how long a default tune takes there, by simulation.

    python benchmarks/cores.py [--seeds 20] [--work 8] [--new 7.5] [--forked 0.8]
    python benchmarks/cores.py --steps 0.05 0.3 1 2.7 5 10

Nothing here is measured on such a machine. The truth of each plan is the model of ``machines.py``
with ``--work`` seconds of one core for a step in fp32. Starts take the seconds of ``--new`` (a new
process that imports torch and transformers) and ``--forked`` (forked from one that has), measured
with ``startup.py``. Steps scatter by 5 %, processes by 3 %, 3 % of the steps are delayed five
times, and the machine gets slower and faster by 5 % over some 15 s. The time for questions to the
script and for the profile of a step is not in the figures: 20 to 40 s, whatever the cores.

With ``--steps`` the work is chosen for each machine so that a step of the current launch takes so
many seconds, and a row has the share of the optimum (median and worst twentieth), the seconds
(median), the trials that ran to their end (mean) and the outcomes.

Otherwise a row for each machine: the plans of its space; the tuned launch over the current one (one
process on all cores, fp32), without noise; the share of the optimum that the recommended plan
reaches, at the median and the worst twentieth; how many of the studies found a faster plan beyond
doubt; and the seconds of a study with the default limits.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Sequence

import machines
import optuna
import starting
from machines import AVX512, EVERY_LIBRARY, SEEN_WARMUP, TODAY, Machine, Model, machine, simulated

import cputune
from cputune.errors import NoValidTrialError

Shape = tuple[str, int, int, int, tuple[str, ...]]
"""Name, sockets, cores of a socket, NUMA nodes of a socket, instruction sets."""

SHAPES: tuple[Shape, ...] = (
    ("1 x 2", 1, 2, 1, AVX512),
    ("1 x 4", 1, 4, 1, AVX512),
    ("1 x 8", 1, 8, 1, machines.AMX),
    ("1 x 16", 1, 16, 1, machines.AMX),
    ("1 x 32", 1, 32, 1, machines.AMX),
    ("1 x 64", 1, 64, 1, machines.AMX),
    ("2 x 28", 2, 28, 1, AVX512),
    ("2 x 56", 2, 56, 1, machines.AMX),
    ("2 x 56, SNC4", 2, 56, 4, machines.AMX),
    ("8 x 8", 8, 8, 1, AVX512),
)


WARMUPS = {"none": (), "first step": (2.1,), "five steps": SEEN_WARMUP}


def machine_of(shape: Shape, work: float, batch: int, warmup: Sequence[float]) -> Machine:
    """A machine of this shape with SMT, and the noise that real ones had."""
    name, sockets, cores, nodes, isa = shape
    facts = machine(
        sockets=sockets,
        cores_per_socket=cores,
        nodes_per_socket=nodes,
        threads_per_core=2,
        isa=isa,
        libraries=EVERY_LIBRARY,
        packages=TODAY,
    )
    model = Model(work=work, bandwidth=max(4.0, cores / nodes / 2), sync=0.001)
    return simulated(
        name,
        facts,
        model,
        batch=batch,
        run_noise=0.03,
        wander=0.05,
        warmup=tuple(warmup),
    )


def row(machine: Machine, seeds: Sequence[int]) -> str:
    """What the studies of all seeds found on one machine."""
    space = cputune.search_space(machine.facts, machine.workload)
    best = min(machine.seconds(plan) for plan in space.plans())
    shares: list[float] = []
    gains: list[float] = []
    seconds: list[float] = []
    faster = 0
    for seed in seeds:
        runner = machine.runner(seed)
        try:
            result = starting.tuned(runner, machine.workload, machine.facts, budget=20, seed=seed)
        except NoValidTrialError:  # not even the current launch was measured in time
            shares.append(100 * best / machine.seconds(space.baseline))
            gains.append(1.0)
            seconds.append(runner.spent_seconds)
            continue
        shares.append(100 * best / machine.seconds(result.best.plan))
        gains.append(machine.seconds(space.baseline) / machine.seconds(result.best.plan))
        seconds.append(runner.spent_seconds)
        faster += result.outcome == "faster"
    worst = sorted(shares)[max(0, math.ceil(0.05 * len(shares)) - 1)]
    optimum = machine.seconds(space.baseline) / best
    return (
        f"| {machine.name} | {len(machine.facts.topology.cores)} | {len(space)} "
        f"| {optimum:.2f} | {statistics.median(gains):.2f} | {statistics.median(shares):.1f} % "
        f"| {worst:.1f} % | {faster} of {len(seeds)} | {statistics.median(seconds):.0f} "
        f"| {max(seconds):.0f} |"
    )


def of_steps(shape: Shape, step_seconds: float, seeds: Sequence[int], warmup: str) -> str:
    """The row of a machine on which a step of the current launch takes so long."""
    one = machine_of(shape, 1.0, 32, ())
    space = cputune.search_space(one.facts, one.workload)
    work = step_seconds / one.seconds(space.baseline)
    machine = machine_of(shape, work, 32, WARMUPS[warmup])
    best = min(machine.seconds(plan) for plan in space.plans())
    shares: list[float] = []
    seconds: list[float] = []
    trials: list[int] = []
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        runner = machine.runner(seed)
        result = starting.tuned(runner, machine.workload, machine.facts, budget=20, seed=seed)
        shares.append(100 * best / machine.seconds(result.best.plan))
        seconds.append(runner.spent_seconds)
        trials.append(sum(trial.state == "completed" for trial in result.trials))
        outcomes[result.outcome.replace("_", " ")] += 1
    worst = sorted(shares)[max(0, math.ceil(0.05 * len(shares)) - 1)]
    listed = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    return (
        f"| {step_seconds:g} s | {machine.name} | {len(machine.facts.topology.cores)} "
        f"| {machine.seconds(space.baseline) / best:.2f} | {statistics.median(shares):.1f} % "
        f"| {worst:.1f} % | {statistics.median(seconds):.0f} | {statistics.mean(trials):.1f} "
        f"| {listed} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--work", type=float, default=8.0, help="seconds of one core for a step")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step")
    parser.add_argument("--new", type=float, default=starting.NEW_SECONDS)
    parser.add_argument("--forked", type=float, default=starting.FORKED_SECONDS)
    parser.add_argument("--steps", type=float, nargs="*", help="seconds of a step")
    parser.add_argument("--warmup", choices=list(WARMUPS), default="five steps")
    options = parser.parse_args()
    starting.NEW_SECONDS, starting.FORKED_SECONDS = options.new, options.forked
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if options.steps:
        print(
            "| step | machine | cores | optimum / current | share, median | share, worst 5 % "
            "| seconds, median | trials | outcomes |\n|---|---|---|---|---|---|---|---|---|"
        )
        for step_seconds in options.steps:
            for shape in SHAPES:
                print(
                    of_steps(shape, step_seconds, range(options.seeds), options.warmup), flush=True
                )
        return
    print(
        "| machine | cores | plans | optimum / current | found / current | share, median "
        "| share, worst 5 % | faster | seconds, median | seconds, most |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for shape in SHAPES:
        made = machine_of(shape, options.work, options.batch, WARMUPS[options.warmup])
        print(row(made, range(options.seeds)), flush=True)


if __name__ == "__main__":
    main()
