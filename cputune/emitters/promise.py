"""What an artefact promises, in a line for programs: written by ``emit``, read by ``verify``.

# cputune-plan: {"format": "mpirun", "plan": {...}, ...}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from cputune.documents import parse, plain, record_of
from cputune.equivalence import Training
from cputune.plan import Plan
from cputune.result import Result, Throughput
from cputune.workload import Workload

_LINE = re.compile(r"^#[ \t]*cputune-plan:[ \t]*(\{.*\})[ \t]*$", re.MULTILINE)


def global_batch(plan: Plan, workload: Workload) -> int | None:
    """Samples of a step of the optimizer over all ranks.

    None where the script's own batch counts, which neither its words nor a trial have shown.
    Raises ValueError for a batch that is not divided.
    """
    each = workload.samples_per_rank(plan.world_size)
    return None if each is None else each * plan.world_size


def scale(plan: Plan, workload: Workload) -> str:
    """How large a job is: ``2 nodes, 8 ranks with 12 samples each, 96 together``."""
    words = f"{count(plan.nodes, 'node')}, {count(plan.world_size, 'rank')}"
    together = global_batch(plan, workload)
    if together is None:
        return f"{words} that share the script's own batch"
    each = f"{words} with {count(together // plan.world_size, 'sample')}"
    return each if plan.world_size == 1 else f"{each} each, {together} together"


def count(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def is_extrapolated(result: Result, plan: Plan) -> bool:
    """Whether the plan runs on another number of nodes than its speed was measured on."""
    return plan.nodes != result.best.plan.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a launch is held against. None and empty: nothing is promised of it.

    Attributes:
        format: the one that the artefact is of.
        plan: what the ranks must show.
        environment: the variables of every rank.
        hosts: of a launch on several nodes, in the order of its plan.
        samples_per_second: the tuned figure, where it was measured on as many nodes.
        global_batch_size: samples per optimizer step over all ranks, where that is fixed.
        sequence_length: tokens of a sample.
        training: what the launch as typed trains.
    """

    format: str | None = None
    plan: Plan | None = None
    environment: Mapping[str, str] | None = None
    hosts: tuple[str, ...] = ()
    samples_per_second: Throughput | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    training: Training | None = None

    def line(self) -> str:
        """The comment that says it for programs."""
        said = {name: value for name, value in plain(self).items() if value not in (None, [])}
        return f"# cputune-plan: {json.dumps(said, separators=(',', ':'))}\n"


def promise_in(text: str) -> Promise:
    """What an artefact promises; nothing where it says nothing that can be read."""
    match = _LINE.search(text)
    known = {field.name for field in fields(Promise)}
    try:
        said = parse(match[1]) if match else {}
        return record_of(Promise, {name: said[name] for name in said if name in known})
    except ValueError:
        return Promise()
