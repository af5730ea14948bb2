"""A machine that was measured once: every plan's steps in a table, and replayed from it.

``write_table`` measures this machine (``search.py --measure``); ``measured_machine`` makes one
of a table that searches are compared on, like those of ``machines``.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from machines import Machine, SimulatedPlan, machine

from cputune.host.facts import Library, Package
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.records.steps import Step
from cputune.text.documents import record_of

WARMUP_RECORDED = 5
_KEPT_PACKAGES = ("torch", "transformers", "accelerate")


@dataclass(slots=True, kw_only=True)
class ReplayRunner:
    """Steps as they were measured: a plan's first ones in order, then any of the later ones."""

    table: Mapping[Plan, Sequence[Step]]
    seed: int = 0
    spent_seconds: float = 0.0
    runs: int = 0

    def steps(self, plan: Plan) -> Iterator[Step]:
        """Endless steps of a plan of the table. Raises KeyError for any other."""
        self.runs += 1
        recorded = self.table[plan]
        rng = random.Random((self.seed << 20) ^ self.runs)
        later = recorded[len(recorded) // 2 :]
        for step in chain(recorded[:WARMUP_RECORDED], (rng.choice(later) for _ in repeat(None))):
            self.spent_seconds += step.seconds
            yield step

    def living(self, plan: Plan) -> SimulatedPlan:
        """The plan beside others."""
        return SimulatedPlan(self.steps(plan))


def write_table(path: Path, *, steps: int) -> None:
    """Measure every plan of this machine, the baseline too, and write what was seen.

    Raises FileExistsError where the table is there already.
    """
    import cputune
    from cputune.ranks.runner import ProcessRunner

    if path.exists():
        raise FileExistsError(path)
    facts = cputune.probe()
    workload = Workload.from_recipe("bert-mini")
    space = cputune.search_space(facts, workload)
    rows = []
    with ProcessRunner(workload, facts) as runner:
        for number, plan in enumerate((space.baseline, *space.plans())):
            iterator = runner.steps(plan)
            taken = list(islice((s for s in iterator), steps))
            iterator.close()
            rows.append({"plan": plan.to_json(), "steps": [asdict(step) for step in taken]})
            print(f"{number}: {plan.describe()}: {taken[-1].seconds:.3f} s", file=sys.stderr)
    document = {
        "name": path.stem,
        "workload": workload.to_json(),
        "facts": {
            "cores": facts.topology.physical_cores,
            "isa": list(facts.cpu.isa),
            "libraries": [asdict(library) for library in facts.libraries],
            "packages": {p.name: p.version for p in facts.packages if p.name in _KEPT_PACKAGES},
        },
        "plans": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def measured_machine(document: Mapping[str, Any]) -> Machine:
    """The machine of a table that ``write_table`` wrote."""
    recorded = document["facts"]
    facts = machine(
        cores_per_socket=recorded["cores"],
        isa=tuple(recorded["isa"]),
        packages=tuple(
            Package(name=name, version=version, location=None)
            for name, version in recorded["packages"].items()
        ),
    )
    facts = replace(facts, libraries=tuple(Library(**lib) for lib in recorded["libraries"]))
    table = {
        record_of(Plan, row["plan"]): tuple(Step(**step) for step in row["steps"])
        for row in document["plans"]
    }

    def seconds(plan: Plan) -> float:
        steps = table[plan]
        later = steps[len(steps) // 2 :]
        quiet = [s.seconds for s in later if not s.delayed]
        return statistics.median(quiet or [step.seconds for step in later])

    return Machine(
        name=document["name"],
        facts=facts,
        workload=record_of(Workload, document["workload"]),
        seconds=seconds,
        runner=lambda seed: ReplayRunner(table=table, seed=seed),
    )
