"""The comment that every artefact starts with: what was measured, where, when, how fast."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

from cputune.emitters.interface import Job
from cputune.figures import figure
from cputune.plan import Plan
from cputune.result import Result, Throughput

WIDTH = 92
_TOLD_VERSIONS = (
    "torch",
    "transformers",
    "accelerate",
    "intel_extension_for_pytorch",
    "oneccl_bind_pt",
)


def comment(lines: Iterable[str], *, sign: str = "#") -> str:
    """Lines as a comment block. Nothing in them can end the comment.

    Whatever is not printable (line breaks of any kind among it) becomes a question mark.
    """
    out = []
    for line in lines:
        plain = "".join(c if c.isprintable() else "?" for c in line)
        wrapped = textwrap.wrap(plain, WIDTH, break_long_words=False, break_on_hyphens=False)
        out += [f"{sign} {part}" for part in wrapped] or [sign]
    return "\n".join(out) + "\n"


def full(job: Job, format: str, title: str, notes: Iterable[str] = ()) -> str:
    """The header of an artefact's main file: for people, then one line for `cputune verify`."""
    lines = [f"{title} Written by cputune {_version()}.", "", *job.header]
    lines += [f"Note: {note}" for note in (*job.notes, *notes)]
    said = json.dumps({"format": format, **job.promise}, separators=(",", ":"))
    return comment(lines) + f"# cputune-plan: {said}\n"


def measured(result: Result, plan: Plan) -> tuple[str, ...]:
    """What a result says of its best plan. ``plan`` is the one that is written down."""
    best, baseline = result.best, result.baseline
    when = f" on {result.created[:10]}" if result.created else ""
    lines = [
        f"Plan: {plan.describe()}.",
        f"Measured{when}: {_speed(best.samples_per_second)} on {machine(result.host)}.",
    ]
    if best.plan.as_found:
        why = "No plan beat plain `python train.py` beyond noise"
        if result.disturbed:
            why = "The machine was not quiet, and no plan is known to beat plain `python train.py`"
        lines.append(
            f"{why}, so this is that launch, with the threads and CPUs that it gets today "
            "written down."
        )
    else:
        other = "The launch as found" if baseline.plan.as_found else baseline.plan.describe()
        lines.append(f"{other} ran at {_speed(baseline.samples_per_second)}; {_speedup(result)}")
    lines += [*_versions(result.versions), *_data(result.data)]
    return (*lines, *(f"Note: {note}" for note in result.notes))


def _speedup(result: Result) -> str:
    """The speed-up; no factor where the machine was not quiet, or its interval is too wide."""
    speedup = result.speedup
    if result.disturbed:
        return "the machine was not quiet, so no speed-up is said."
    if not speedup.narrow:
        return f"this is faster, between {speedup.low:.2f} and {speedup.high:.2f} times."
    beside = f", {speedup.pairs} pairs measured side by side" if speedup.pairs else ""
    return f"speed-up {speedup.ratio:.2f} ({speedup.low:.2f} to {speedup.high:.2f}){beside}."


def unmeasured(host: Mapping[str, Any], plan: Plan) -> tuple[str, ...]:
    """What stands there where no result was given."""
    return (
        f"Plan: {plan.describe()}.",
        "NOTHING WAS MEASURED. This is the default plan of the Hugging Face CPU guides (a rank "
        f"per socket, all its cores, the precision its hardware has) for {machine(host)}; "
        "`cputune tune` finds out what is fastest.",
    )


def section(host: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a host document; empty where there is none."""
    found = host.get(name)
    return found if isinstance(found, Mapping) else {}


def machine(host: Mapping[str, Any]) -> str:
    """A machine in a few words, without its name: processor, sockets, cores."""
    cpu, topology = section(host, "cpu"), section(host, "topology")
    words = [str(cpu.get("model_name") or cpu.get("codename") or "an unnamed processor")]
    counts = (
        (topology.get("sockets"), "socket"),
        (topology.get("physical_cores"), "core"),
        (topology.get("logical_cpus"), "CPU"),
    )
    words += [f"{n} {unit}{'' if n == 1 else 's'}" for n, unit in counts if n]
    return ", ".join(words)


def _speed(value: Throughput) -> str:
    low, high = figure(value.low, 4), figure(value.high, 4)
    return f"{figure(value.median, 4)} samples/s (95 % interval {low} to {high})"


def _versions(versions: Mapping[str, str]) -> tuple[str, ...]:
    told = [f"{name} {versions[name]}" for name in _TOLD_VERSIONS if versions.get(name)]
    return ("With " + ", ".join(told) + ".",) if told else ()


def _data(data: str | None) -> tuple[str, ...]:
    return (f"Data: {data}.",) if data else ()


def _version() -> str:
    try:
        return metadata.version("cputune")
    except metadata.PackageNotFoundError:
        return "from a checkout"
