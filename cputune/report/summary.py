"""What a result says, as the records that each page of it is made from: text, Markdown, HTML.

Here stands what is said; how it looks is each page's own part. Text of a result comes from
outside, so a page cleans it (``cputune.visible`` for a terminal).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cputune import cpulist
from cputune.emitters.header import machine, section
from cputune.plan import Plan
from cputune.report.machine import gib
from cputune.report.tuning import sentence, value_words
from cputune.result import Measured, Result, Speedup
from cputune.tuner.worth import LAYOUT, layout_words, separate_knobs, shape
from cputune.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing to change on the way from today's launch to the best plan.

    Several knobs stand together, with commas, where they were measured together. ``worth`` is
    how many times faster this change makes the plan before it; None where nobody knows: it was
    not measured by itself, or others disturbed the machine.
    """

    knob: str
    today: str
    best: str
    worth: Speedup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A result in few words and numbers.

    Attributes:
        verdict: the outcome in one sentence.
        today: the launch that was compared with, and its speed.
        best: the recommendation; ``today`` itself where nothing beat it.
        speedup: of best over today; None where no factor is to be said.
        changes: what makes ``best`` of ``today``, in the order in which it was measured.
        machine: (label, text) of the machine that it was measured on.
        work: (label, text) of what was trained.
        study: (label, text) of how it was searched.
        versions: of the training stack and of cputune, by distribution name.
        notes: what a reader needs in order to trust it.
    """

    verdict: str
    today: Measured
    best: Measured
    speedup: Speedup | None
    changes: tuple[Change, ...]
    machine: tuple[tuple[str, str], ...]
    work: tuple[tuple[str, str], ...]
    study: tuple[tuple[str, str], ...]
    versions: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def nothing_to_change(self) -> bool:
        """Whether today's launch is the recommendation."""
        return self.best.plan == self.today.plan


def summary_of(result: Result) -> Summary:
    """All that a page says of a result but its trials."""
    sure = result.speedup.narrow and not result.disturbed
    return Summary(
        verdict=sentence(result),
        today=result.baseline,
        best=result.best,
        speedup=result.speedup if sure else None,
        changes=changes_of(result),
        machine=tuple(_machine(result.host)),
        work=tuple(_work(result.workload, result.data)),
        study=tuple(_study(result)),
        versions=dict(result.versions),
        notes=result.notes,
    )


def changes_of(result: Result) -> tuple[Change, ...]:
    """What differs between today's launch and the best plan, and what each is worth."""
    left = dict(_differences(result.baseline.plan, result.best.plan))
    found = []
    for worth in result.worth:
        names = [name for name in worth.knob.split(", ") if name in left]
        if names:
            values = [left.pop(name) for name in names]
            known = worth.speedup.narrow and not result.disturbed
            found.append(_change(names, values, worth.speedup if known else None))
    return (*found, *(_change([name], [values], None) for name, values in left.items()))


def _change(names: list[str], values: list[tuple[str, str]], worth: Speedup | None) -> Change:
    return Change(
        knob=", ".join(names),
        today=", ".join(today for today, _ in values),
        best=", ".join(best for _, best in values),
        worth=worth,
    )


def _differences(today: Plan, best: Plan) -> Iterator[tuple[str, tuple[str, str]]]:
    """(knob, (today's value, the best plan's)) of each that differs; the layout first."""
    if shape(today) != shape(best):
        words = layout_words(today), layout_words(best)
        if words[0] == words[1]:
            words = _on_cpus(today), _on_cpus(best)
        yield LAYOUT, words
    between = ("backend", "ccl_workers") if min(today.world_size, best.world_size) > 1 else ()
    for name in (*between, *separate_knobs()):  # a single rank has nobody to agree with
        values = today.value(name), best.value(name)
        if values[0] != values[1]:
            yield name, (value_words(values[0]), value_words(values[1]))


def _on_cpus(plan: Plan) -> str:
    return f"{layout_words(plan)} on CPUs {cpulist.render(cpu for r in plan.cpus for cpu in r)}"


def places(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Who of a plan runs on which CPUs: each rank, and the oneCCL workers of each."""
    found = {f"rank {number}": cpus for number, cpus in enumerate(plan.cpus)}
    workers = {f"workers of rank {n}": cpus for n, cpus in enumerate(plan.ccl_cpus) if cpus}
    return {**found, **workers}


def worth_words(change: Change) -> str:
    """``×2.10 (2.02–2.18)``, and whether that is sure."""
    if change.worth is None:
        return "not known"
    factor = f"×{change.worth.ratio:.2f} ({change.worth.low:.2f}–{change.worth.high:.2f})"
    return factor if change.worth.significant or change.worth.high < 1 else f"{factor}, not sure"


def allowed_cpus(result: Result) -> frozenset[int] | None:
    """The CPUs that were allowed; None where the result does not say so."""
    text = section(result.host, "topology").get("allowed")
    try:
        return frozenset(cpulist.parse(text)) if isinstance(text, str) else None
    except ValueError:
        return None


def _machine(host: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a result says of its machine; what it does not say is left out."""
    yield "machine", machine(host)
    cpu, topology, limits = (section(host, name) for name in ("cpu", "topology", "limits"))
    if cpu.get("codename") and cpu.get("model_name"):
        yield "codename", str(cpu["codename"])
    for key, label in (("numa_nodes", "NUMA nodes"), ("threads_per_core", "threads per core")):
        if topology.get(key):
            yield label, str(topology[key])
    if topology.get("allowed"):
        yield "allowed CPUs", str(topology["allowed"])
    if limits.get("cpu_quota"):
        yield "CPU quota", str(limits["cpu_quota"])
    if isinstance(limits.get("memory_bytes"), int):
        yield "memory limit", gib(limits["memory_bytes"])


def _work(workload: Workload, data: str | None) -> Iterator[tuple[str, str]]:
    recipe = workload.recipe
    if recipe is not None:
        yield "recipe", workload.name
        yield "task", recipe.task
        yield "sequence length", str(recipe.sequence_length)
    else:
        yield "script", " ".join(workload.argv)
    if workload.batch_per_rank is not None:
        yield "batch", f"{workload.batch_per_rank} samples of each rank per step"
    elif workload.global_batch_size is not None:
        yield "batch", f"{workload.global_batch_size} samples per step"
    if data:
        yield "data", data


def _study(result: Result) -> Iterator[tuple[str, str]]:
    if result.created:
        yield "measured", result.created
    counts = dict.fromkeys(("completed", "pruned", "failed"), 0)
    for trial in result.trials:
        counts[trial.state] += 1
    kinds = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    yield "trials", f"{len(result.trials)}" + (f" ({kinds})" if kinds else "")
    if result.seconds is not None:
        yield "took", duration(result.seconds)
    asked = (("", result.sampler), ("budget ", result.budget), ("seed ", result.seed))
    search = ", ".join(f"{label}{value}" for label, value in asked if value is not None)
    if search:
        yield "search", search
    yield "side by side", _confirmed(result)


def _confirmed(result: Result) -> str:
    """What stands behind the factor."""
    if not result.confirmation:
        return "not confirmed: speeds are those of single trials"
    failed = sum(run.samples_per_second is None for run in result.confirmation)
    pairs = f"{result.speedup.pairs} pairs" if result.speedup.pairs else "no pairs"
    return f"{pairs}, {len(result.confirmation)} runs" + (f", {failed} failed" if failed else "")


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``1 h 5 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
