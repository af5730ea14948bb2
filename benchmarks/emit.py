"""Does each emitted launch reach the tuned throughput? Ratios to the trial, side by side.

    python benchmarks/emit.py                         # every format, cputune.json
    python benchmarks/emit.py --formats mpirun torchrun --rounds 7 --steps 20

In each round the tuned plan is run once as tune runs it, in plain new processes, and once by
each launch file, as it is, in an order that turns from round to round. A ratio is that of one
launch to the trials before and after it; the interval is Student's over the rounds, on
logarithms. mpirun and accelerate are run with every MPI that tests/consumers/install.py has
installed, and with the one on PATH. Needs a quiet machine: 8 launches take 2 minutes a round.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import cputune
from cputune.host import LiveHost
from cputune.ranks.runner import ProcessRunner
from cputune.records.result import Result, Throughput
from cputune.tuner.gains import gain_side_by_side
from cputune.tuner.race import USUAL_NOISE
from cputune.verifier import verify
from cputune.verifier.checks import step_rates

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "consumers"))
import install

ENTRY = {
    "mpirun": "mpirun.sh",
    "accelerate": "accelerate.sh",
    "torchrun": "torchrun.sh",
    "pytorchjob": "pytorchjob.yaml",
    "trainjob": "trainjob.yaml",
}


class HostWithPath(LiveHost):
    """The live machine, with one directory first on PATH."""

    def __init__(self, first: Path | None) -> None:
        self._first = first

    def environment(self) -> Mapping[str, str]:
        variables = dict(os.environ)
        if self._first is not None:
            variables["PATH"] = f"{self._first}:{variables['PATH']}"
        return variables


@dataclass(slots=True)
class Launch:
    """One launch file under one MPI, and its log ratios so far."""

    format: str
    path: Path
    host: HostWithPath
    mpi: str = ""
    ratios: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    trouble: str | None = None

    @property
    def name(self) -> str:
        return f"{self.format} {self.mpi}".strip()


def main() -> None:
    options = parse()
    result = Result.load(options.result)
    print(f"{result.workload.name}: {result.best.plan.describe()}, {options.rounds} rounds")
    with tempfile.TemporaryDirectory(prefix="cputune-bench-") as directory:
        launches = list(written(result, options.formats, Path(directory)))
        measure(result, launches, options.rounds, options.steps)
    report(launches)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--result", type=Path, default=Path("cputune.json"))
    parser.add_argument("--formats", nargs="+", choices=list(ENTRY), default=list(ENTRY))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15, help="of each run, warm-up included")
    return parser.parse_args()


def written(result: Result, formats: Sequence[str], directory: Path) -> Iterator[Launch]:
    """Write every format once, and pair those that start mpirun with every MPI there is."""
    prefixes = {name: install.prefix(name) / "bin" for name in install.PACKAGES}
    mpis = {name: path for name, path in prefixes.items() if (path / "mpirun").exists()}
    several = result.best.plan.world_size > 1
    # verify starts a launch again that is slower than its figure, and takes the faster run.
    slow = Throughput(centre=1e-3, low=1e-3, high=1e-3)
    result = replace(result, best=replace(result.best, samples_per_second=slow))
    for name in formats:
        target = directory / name
        target.mkdir()
        for file in cputune.emit(result, name, nodes=1):
            path = target / file.name
            path.write_text(file.text, encoding="utf-8")
            path.chmod(0o755 if file.executable else 0o644)
        path = target / ENTRY[name]
        if name == "mpirun" or (name == "accelerate" and several):
            for mpi, first in mpis.items():
                yield Launch(name, path, HostWithPath(first), mpi)
            if not mpis:
                yield Launch(name, path, HostWithPath(None))
        else:
            yield Launch(name, path, HostWithPath(None))


def measure(result: Result, launches: Sequence[Launch], rounds: int, steps: int) -> None:
    """Run everything ``rounds`` times; fills the ratios of the launches."""
    plan = result.best.plan
    with ProcessRunner(result.workload, cputune.probe(), fresh=True) as runner:

        def trial() -> float:
            made = runner.steps(plan)
            taken = list(itertools.islice(made, steps))
            made.close()  # type: ignore[attr-defined]
            return rate_of(taken)

        before = trial()
        for number in range(rounds):
            turn = number % len(launches)
            seen = {}
            for launch in (*launches[turn:], *launches[:turn]):
                if launch.trouble is None:
                    rate = run(launch, result, steps)
                    if rate is not None:
                        seen[launch.name] = rate
            after = trial()
            for launch in launches:
                if launch.name in seen:
                    between = math.sqrt(before * after)
                    launch.rates.append(seen[launch.name])
                    launch.ratios.append(math.log(seen[launch.name] / between))
            print(f"round {number + 1}: trials {before:.3g} and {after:.3g} samples/s", flush=True)
            before = after


def rate_of(steps: Sequence[cputune.Step]) -> float:
    """Samples per second, by the rule that launches are timed by."""
    return statistics.median(step_rates(steps)[0])


def run(launch: Launch, result: Result, steps: int) -> float | None:
    """Samples per second of one run of a launch; None where its ranks were not the plan's."""
    (verdict,) = verify([launch.path], steps=steps, host=launch.host)
    wrong = [
        check
        for check in verdict.checks
        if check.state != "passed" and check.name not in ("throughput", "lint", "syntax")
    ]
    if wrong or verdict.throughput is None:
        launch.trouble = wrong[0].summary if wrong else "it was not timed"
        return None
    return verdict.throughput.measured


def report(launches: Sequence[Launch]) -> None:
    """The table: a launch, its speed, its ratio to the trial with a 95 % interval."""
    print(f"\n{'launch':<22}{'samples/s':>10}{'ratio':>8}   95 % interval")
    for launch in launches:
        if launch.trouble is not None or not launch.ratios:
            print(f"{launch.name:<22}  {launch.trouble}")
            continue
        center = statistics.fmean(launch.ratios)
        speed = f"{statistics.median(launch.rates):>10.3g}{math.exp(center):>8.3f}"
        gain = gain_side_by_side([[one] for one in launch.ratios], USUAL_NOISE)
        if gain is None:
            print(f"{launch.name:<22}{speed}   none: one round")
            continue
        low, high = math.exp(gain.low), math.exp(gain.high)
        word = "within noise" if low <= 1 <= high else "DIFFERS"
        print(f"{launch.name:<22}{speed}   {low:.3f} to {high:.3f}  {word}")


if __name__ == "__main__":
    main()
