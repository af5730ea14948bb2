"""Where the seconds of a tune go: starts, steps, questions to the model, comparison, profile.

    python benchmarks/seconds.py [--budget 20] [--recipe bert-mini] [--rounds 1]

Each event of the study (``cputune.tuner.events``) ends what went on before it. Real processes, on
a quiet machine. Prints a row for each part: seconds of each round, and the share of the whole.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence

import cputune
from cputune.plans.workload import DEFAULT_RECIPE
from cputune.records.result import ConfirmRun
from cputune.tuner.events import (
    ConfirmStarted,
    Event,
    Message,
    StepTaken,
    StudyEnded,
    StudyStarted,
    TrialEnded,
    TrialStarted,
)

BEFORE, BETWEEN, AFTER = "until the study begins", "between trials", "after the comparison"
STARTS, STEPS = "trials: from a start to its first step", "trials: steps"
QUESTIONS = "questions to the model"
NEW, TURNS = "comparison: from a start to its first step", "comparison: turns"
PROFILE = "where the time of a step goes"
PARTS = (BEFORE, STARTS, STEPS, BETWEEN, QUESTIONS, NEW, TURNS, PROFILE, AFTER)

SAID = {"checking what can be changed": QUESTIONS, "looking where the time": PROFILE}
"""How the sentences begin that say what goes on; others say what was seen."""


class Watch:
    """Sums up what goes on, from one event to the next."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._part, self._since = BEFORE, time.perf_counter()

    def __call__(self, event: Event) -> None:
        """Count the time until this event for what went on before it."""
        now = time.perf_counter()
        self.seconds[self._part] += now - self._since
        self._since, self._part = now, self._begun_by(event)

    def _begun_by(self, event: Event) -> str:
        match event:
            case StudyStarted() | TrialEnded():
                return BETWEEN
            case TrialStarted():
                return STARTS
            case StepTaken(number=number):
                return TURNS if number is None else STEPS
            case ConfirmStarted() | ConfirmRun():
                return NEW
            case StudyEnded():
                return AFTER
            case Message(text=text):
                found = (part for begins, part in SAID.items() if text.startswith(begins))
                return next(found, self._part)
        return self._part


def table(rounds: Sequence[dict[str, float]]) -> str:
    """A row for each part: its seconds in each round, and its share of all of them."""
    whole = sum(sum(one.values()) for one in rounds)
    rows = [f"{'part':<45}" + "".join(f"{f'round {n + 1}':>9}" for n in range(len(rounds)))]
    for part in PARTS:
        spent = [one.get(part, 0.0) for one in rounds]
        cells = "".join(f"{seconds:>7.1f} s" for seconds in spent)
        rows.append(f"{part:<45}{cells} {sum(spent) / whole:>5.0%}")
    cells = "".join(f"{sum(one.values()):>7.1f} s" for one in rounds)
    return "\n".join([*rows, f"{'all':<45}{cells}"])


def main() -> None:
    """Tune so many times, and print where the seconds went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=20)
    parser.add_argument("--recipe", default=DEFAULT_RECIPE)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    rounds = []
    for _ in range(arguments.rounds):
        watch = Watch()
        job = cputune.Workload.from_recipe(arguments.recipe)
        result = cputune.tune(job, budget=arguments.budget, on_event=watch)
        watch.seconds[AFTER] += 0.0
        rounds.append(dict(watch.seconds))
        gain = result.speedup
        told = (
            "not compared" if gain is None else f"{gain.ratio:.2f} ({gain.low:.2f}-{gain.high:.2f})"
        )
        print(f"{len(result.trials)} trials; {told} {result.best.plan.short()}", flush=True)
    print(table(rounds))


if __name__ == "__main__":
    main()
