"""What each knob is worth here, one at a time, beside the plan without it.

    python benchmarks/knobs.py [--recipe bert-mini] [--minutes 6] [--only dropout,products]

The base is one rank over all cores, in bf16 where the CPU multiplies it, with tcmalloc where it was
found. Of each knob that lives here one plan has it and one has not; all are alive at once and take
three steps in turn, so that each round compares all of them. Prints a Markdown table: how much
faster the plan with the knob is, with the 95 % interval over rounds.

Needs a quiet machine, and about 1 GiB of memory for each plan.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from turns import Contender, ratio, side_by_side, table

import cputune
from cputune.cores import usable_cores
from cputune.facts import HostFacts
from cputune.knobs import Ask, KnobValue, knob_named
from cputune.knobs.libraries import preloads
from cputune.knobs.precision import advised_precision
from cputune.layout import make_plan
from cputune.plan import Plan
from cputune.ranks.runner import ProcessRunner
from cputune.workload import DEFAULT_RECIPE, Workload

ASKED: tuple[tuple[str, KnobValue], ...] = (
    ("dropout", "bytes"),
    ("products", "bf16"),
    ("optimizer", "adamw_torch"),
    ("accumulation", 2),
    ("malloc", "kept"),
    ("malloc", "huge_pages"),
    ("compile", True),
)
"""Knobs and the value that is compared with that of the base."""

FIRST = {
    "products": {"precision": "fp32"},
    "malloc": {"allocator": "default", "preload": ()},
}
"""In what else the plans that are compared for a knob differ from the base."""


def base_plan(facts: HostFacts) -> Plan:
    """One rank over all cores, in the advised precision, with tcmalloc where it was found."""
    plan = make_plan(usable_cores(facts), 1, precision=advised_precision(facts))
    if facts.library("tcmalloc") is not None:
        plan = replace(plan, allocator="tcmalloc")
    return replace(plan, preload=preloads(plan, facts))


def pairs(facts: HostFacts, job: Workload, only: set[str]) -> Iterator[tuple[str, Plan, Plan]]:
    """What is compared: the knob, the plan without it, the plan with it."""
    base = base_plan(facts)
    for name, value in ASKED:
        if only and name not in only:
            continue
        knob = knob_named(name)
        assert knob.choices is not None
        assert knob.put is not None
        here = knob.choices(facts, Ask(workload=job, fixed={name: value}))
        if value not in here.values:
            print(f"{name}={value}: {here.left_out[0].why}", file=sys.stderr)
            continue
        without = replace(base, **FIRST.get(name, {}))
        changed = knob.put(without, value, facts)
        if changed is not None:
            yield f"{name}={value}", without, changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default=DEFAULT_RECIPE)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    until = time.monotonic() + 60 * arguments.minutes
    facts = cputune.probe()
    job = Workload.from_recipe(arguments.recipe)
    compared = list(pairs(facts, job, set(filter(None, arguments.only.split(",")))))
    plans = dict.fromkeys(plan for _, *both in compared for plan in both)
    contenders = {
        plan: Contender(
            name=plan.describe(), runner=ProcessRunner(job, facts, fresh=True), plan=plan
        )
        for plan in plans
    }
    side_by_side(list(contenders.values()), until=until)
    rows = {}
    for name, without, changed in compared:
        one, other = contenders[changed], contenders[without]
        failed = one.failed or other.failed
        told = failed or ratio(one, other)
        rows[name] = (other.name, told)
    print(table(rows, ("knob", "beside", "faster by ×")))
    rounds = max(len(one.seconds) for one in contenders.values())
    print(f"\n{facts.cpu.model_name}, {job.name}, global batch {job.global_batch_size};", end=" ")
    print(f"{rounds} rounds.")


if __name__ == "__main__":
    main()
