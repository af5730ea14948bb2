"""How long cputune takes with a study of 10,000 trials: seconds of each step from it to a launch.

    python benchmarks/load.py                 # 10,000 trials
    python benchmarks/load.py --trials 1000 --keep FOLDER

The machine is simulated: two sockets of 32 cores in the IPEX era. A script with a batch of its
own per rank has more than 2,000 plans there, so that each is tried some four times. The trials
are made in memory and copied into a file; each holds what the ranks of a real one say. No step
takes time: what is printed is cputune's own.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

from machines import EVERY_LIBRARY, IPEX_ERA, Model, machine, simulated

import cputune
from cputune.host.facts import Launcher
from cputune.plans.plan import Plan
from cputune.records.options import TuneOptions
from cputune.records.steps import Step
from cputune.report.answer import show
from cputune.text import cpulist
from cputune.tuner.events import ConfirmStarted, Event, StudyEnded, StudyStarted, TrialStarted
from cputune.tuner.measuring import trial_of
from cputune.tuner.race import Race
from cputune.tuner.reading import Rules, read_run
from cputune.tuner.space import SearchSpace
from cputune.tuner.storage import StudyStorage, identity_of
from cputune.tuner.stores import StudyFile

LARGE = simulated(
    "large",
    replace(
        machine(
            sockets=2,
            cores_per_socket=32,
            threads_per_core=2,
            libraries=EVERY_LIBRARY,
            packages=IPEX_ERA,
        ),
        launchers=(Launcher(name="mpirun", path="/opt/mpi/bin/mpirun", dialect="intelmpi"),),
    ),
    Model(work=16, bandwidth=8),
    noise=0.03,
    delays=0.0,
)
JOB = cputune.Workload.from_recipe("bert-mini", batch_per_rank=8)
OPTIONS: Mapping[str, Any] = {"allow_slow_precision": True}


@dataclass(frozen=True, slots=True)
class ShownRunner:
    """A simulated runner whose ranks show what those of a real job do."""

    seed: int

    def steps(self, plan: Plan) -> Iterator[Step]:
        return LARGE.runner(self.seed).steps(plan)


def main() -> None:
    given = parse()
    with tempfile.TemporaryDirectory(prefix="cputune-load-") as temporary:
        folder = Path(given.keep or temporary)
        folder.mkdir(exist_ok=True)
        study, result = folder / "cputune.db", folder / "cputune.json"
        with timed("laying out the space"):
            space = cputune.search_space(LARGE.facts, JOB, **OPTIONS)
        if not study.exists():
            with timed(f"making {given.trials} trials"):
                make(study, space, given.trials)
        print(f"{'':40}{study.stat().st_size / 1e6:8.1f} MB")
        found = resume(study, given.trials + 1)
        with timed("saving the result"):
            found.save(result, force=True)
        print(f"{'':40}{result.stat().st_size / 1e6:8.1f} MB")
        with timed("loading the result"):
            loaded = cputune.Result.load(result)
        with timed("reporting"), redirect_stdout(StringIO()):
            show(loaded)
        with timed("emitting every format"):
            cputune.emit(loaded, "all", nodes=1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument(
        "--keep", metavar="FOLDER", help="keep the study here, or take it from here"
    )
    return parser.parse_args()


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how many seconds the block took."""
    began = time.monotonic()
    yield
    tell(what, time.monotonic() - began)


def tell(what: str, seconds: float) -> None:
    print(f"{what:40}{seconds:8.2f} s", flush=True)


def make(path: Path, space: SearchSpace, count: int) -> None:
    """A study of so many trials: the baseline, then most plans in an order of chance, and again."""
    begun = StudyStorage(path, resume=False)
    begun.claim(identity_of(TuneOptions(**OPTIONS), LARGE.facts, JOB))
    begun.remember(JOB)
    begun.write_down()
    begun.close()
    book = StudyStorage(None, resume=False)
    plans = list(space.plans())
    Random(0).shuffle(plans)
    race, runner = Race(), ShownRunner(0)
    for number, plan in enumerate(itertools.chain([space.baseline], itertools.cycle(plans[100:]))):
        if number == count:
            break
        if number:
            book.begin(space, plan)
        else:
            book.begin_baseline()
        run = read_run(runner, plan, Rules(verdict=race.verdict))
        trial = trial_of(
            run,
            race,
            number=number,
            plan=plan,
            origin="sampler" if number else "baseline",
            step_seconds=run.step_seconds,
            observed=shown(plan),
        )
        if number < 100:  # what the first have taught is enough to end the rest early
            race.learn(run.logs, race.estimate(run.logs), completed=trial.state == "completed")
        book.end(trial, run)
    with StudyFile(path=path).loaded() as study:
        study.add_trials(book._study.trials)


def shown(plan: Plan) -> tuple[dict[str, Any], ...]:
    """What the ranks of a real trial say, as it stands in a study."""
    return tuple(
        {
            "rank": rank,
            "local_rank": rank,
            "world_size": plan.world_size,
            "backend": plan.backend,
            "threads": plan.threads_per_process,
            "dtype": "bfloat16" if plan.precision == "bf16" else "float32",
            "openmp": "libgomp",
            "allocator": plan.allocator,
            "preload": list(plan.preload),
            "ipex": plan.ipex,
            "framework": "accelerate",
            "batch": 8,
            "accumulation": 1,
            "samples": 8,
            "learning_rate": 5e-05,
            "dataset": "SyntheticTokens",
            "optimizer": {"class": "AdamW", "fused": True, "foreach": False},
            "python": "3.11.0",
            "pid": 4000 + rank,
            "affinity": cpulist.render(cpus),
            "torch": "2.8.0",
            "transformers": "4.56.2",
            "accelerate": "1.7.0",
        }
        for rank, cpus in enumerate(plan.cpus)
    )


def resume(study: Path, budget: int) -> cputune.Result:
    """Go on with the study for one trial and the confirmation, and print what each part took."""
    moments = [time.monotonic()]
    parts = {
        StudyStarted: "resuming: what is on record is learnt from",
        TrialStarted: "proposing the next trial",
        ConfirmStarted: "that trial, and what to confirm",
        StudyEnded: "the confirmation, and the conclusion",
    }

    def on_event(event: Event) -> None:
        part = parts.get(type(event))  # type: ignore[arg-type]
        if part is not None:
            moments.append(time.monotonic())
            tell(part, moments[-1] - moments[-2])

    return cputune.tune(
        JOB,
        facts=LARGE.facts,
        runner=ShownRunner(1),
        study=study,
        resume=True,
        budget=budget,
        on_event=on_event,
        **OPTIONS,
    )


if __name__ == "__main__":
    main()
