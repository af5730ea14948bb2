"""The document that tune writes and emit reads: ``cputune.json``, schema ``cputune.result/1``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cputune import cpulist
from cputune._typed import mismatch
from cputune.errors import ResultError, UsageError
from cputune.facts import HostFacts
from cputune.plan import Plan
from cputune.workload import Workload

SCHEMA_NAME = "cputune.result"
SCHEMA_VERSION = 1

COMPLETED, PRUNED, FAILED = "completed", "pruned", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Samples per second of the whole job: the median and its 95 % interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """Throughput of the best plan over the baseline's, measured interleaved, 95 % interval.

    ``pairs`` is how often the two were measured side by side. ``significant`` is false
    where the interval includes 1: the recommendation is then the baseline.
    """

    ratio: float
    low: float
    high: float
    pairs: int = 0

    @property
    def significant(self) -> bool:
        """Whether the gain is beyond noise."""
        return self.low > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A plan and how fast it ran."""

    plan: Plan
    samples_per_second: Throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial of the study, in the order they were run, from 0.

    Attributes:
        state: completed, pruned (it had clearly lost) or failed.
        kind: for a failure its type: infeasible, crashed, timed out, no measurement,
            contended, diverged, out of memory, wrong state.
        reason: for people; with the tail of stderr for a crash.
        steps: optimizer steps that were measured.
        step_seconds: seconds of all its steps, warm-up included.
        origin: who proposed the plan: baseline, guide, topology, or the sampler's name.
        observed: what the ranks saw: one mapping per rank.
    """

    number: int
    plan: Plan
    state: str
    kind: str | None = None
    reason: str | None = None
    samples_per_second: Throughput | None = None
    steps: int = 0
    delayed_steps: int = 0
    warmup_steps: int = 0
    step_seconds: float = 0.0
    origin: str = "sampler"
    observed: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a study has found.

    ``best`` is the recommendation: the baseline itself where nothing beat it beyond
    noise. ``notes`` are sentences that a reader needs in order to trust it.
    """

    host: Mapping[str, Any]
    versions: Mapping[str, str]
    workload: Workload
    baseline: Measured
    best: Measured
    speedup: Speedup
    trials: tuple[Trial, ...]
    created: str | None = None
    seed: int | None = None
    budget: int | None = None
    sampler: str | None = None
    data: str | None = None
    left_out: tuple[Mapping[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    confirmation: tuple[Mapping[str, Any], ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """The document, its schema first."""

        def measured(value: Measured) -> dict[str, Any]:
            return {
                "plan": value.plan.to_json(),
                "samples_per_second": asdict(value.samples_per_second),
            }

        return {
            "schema": f"{SCHEMA_NAME}/{SCHEMA_VERSION}",
            "created": self.created,
            "host": dict(self.host),
            "versions": dict(self.versions),
            "workload": self.workload.to_json(),
            "data": self.data,
            "baseline": measured(self.baseline),
            "best": measured(self.best),
            "speedup": {**asdict(self.speedup), "significant": self.speedup.significant},
            "notes": list(self.notes),
            "budget": self.budget,
            "seed": self.seed,
            "sampler": self.sampler,
            "seconds": self.seconds,
            "left_out": [dict(entry) for entry in self.left_out],
            "confirmation": [dict(entry) for entry in self.confirmation],
            "trials": [{**asdict(trial), "plan": trial.plan.to_json()} for trial in self.trials],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Result:
        """Read a document of any schema version that we know. Raises ResultError."""
        values = dict(migrate(document))
        values.pop("schema")

        def measured(value: Mapping[str, Any]) -> Measured:
            return Measured(
                plan=Plan.from_json(value["plan"]),
                samples_per_second=Throughput(**value["samples_per_second"]),
            )

        def trial(value: Mapping[str, Any]) -> Trial:
            fields = dict(value)
            fields["plan"] = Plan.from_json(fields["plan"])
            speed = fields.get("samples_per_second")
            fields["samples_per_second"] = None if speed is None else Throughput(**speed)
            fields["observed"] = tuple(fields.get("observed", ()))
            return Trial(**fields)

        try:
            speedup = {k: v for k, v in values["speedup"].items() if k != "significant"}
            values.update(
                workload=Workload.from_json(values["workload"]),
                baseline=measured(values["baseline"]),
                best=measured(values["best"]),
                speedup=Speedup(**speedup),
                trials=tuple(trial(value) for value in values["trials"]),
                left_out=tuple(values.get("left_out", ())),
                notes=tuple(values.get("notes", ())),
                confirmation=tuple(values.get("confirmation", ())),
            )
            result = cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
            raise _damaged(error) from error
        wrong = mismatch(result)
        if wrong is not None:
            raise _damaged(wrong)
        return result


def host_fingerprint(facts: HostFacts) -> dict[str, Any]:
    """What makes a result one of this machine: its CPU, layout and limits, not its load."""
    topology = facts.topology
    return {
        "cpu": {
            "vendor": facts.cpu.vendor,
            "model_name": facts.cpu.model_name,
            "codename": facts.cpu.codename,
            "isa": list(facts.cpu.isa),
        },
        "topology": {
            "sockets": topology.sockets,
            "physical_cores": topology.physical_cores,
            "threads_per_core": topology.threads_per_core,
            "logical_cpus": len(topology.online),
            "numa_nodes": len(topology.numa_nodes),
            "allowed": cpulist.render(topology.allowed),
        },
        "limits": {
            "cpu_quota": facts.limits.cpu_quota,
            "memory_bytes": facts.limits.memory_bytes,
        },
    }


def _damaged(what: object) -> ResultError:
    return ResultError(f"the result file is damaged: {what}", hint="run `cputune tune` again")


MIGRATIONS: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = ()
"""One function per step, ``MIGRATIONS[n]`` from schema n + 1 to n + 2."""


def migrate(document: Mapping[str, Any]) -> dict[str, Any]:
    """Bring a document to the newest schema. Raises ResultError for one that is not ours."""
    schema = document.get("schema") if isinstance(document, Mapping) else None
    name, _, number = str(schema).partition("/")
    if name != SCHEMA_NAME or not number.isdigit() or int(number) < 1:
        raise ResultError(
            "this is not a cputune result file", hint="`cputune tune` writes one: cputune.json"
        )
    if int(number) > SCHEMA_VERSION:
        raise ResultError(
            f"the result file has schema {number}, this cputune knows {SCHEMA_VERSION}",
            hint="upgrade cputune: pip install -U cputune",
        )
    migrated = dict(document)
    for step in MIGRATIONS[int(number) - 1 :]:
        migrated = step(migrated)
    return migrated


def load_result(path: Path) -> Result:
    """Read a result file. Raises ResultError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(
            f"cannot read {path}: {error.strerror}", hint="run `cputune tune` first"
        ) from error
    except ValueError as error:
        raise ResultError(
            f"{path} is not JSON: {error}", hint="run `cputune tune` again"
        ) from error
    return Result.from_json(document)
