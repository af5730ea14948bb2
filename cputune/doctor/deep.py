"""``cputune doctor --deep``: looks that cost time or may kill, each in a child.

A mismatched IPEX ends the interpreter that imports it, the oneCCL bindings abort, a
hypervisor may show AMX and not give it: what happens there happens in a child with a
timeout, and how it ended is the evidence. A look that cannot be taken says why.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

from cputune import cpulist
from cputune.doctor.checks.children import (
    AFFINITY,
    ILLEGAL,
    IMPORT_FAILS,
    ISA,
    LIMITS,
    OPENMP,
    RATIO,
    SKIPPED,
)
from cputune.doctor.finding import Finding, Severity, by_severity
from cputune.doctor.variables import value
from cputune.facts import HostFacts
from cputune.host import Command, Completed, Host
from cputune.host.interpreter import ELSEWHERE
from cputune.inside import limits_script
from cputune.knobs.precision import native_precisions
from cputune.stack import oneccl_module, versions_of
from cputune.stack.ways import both_ways

IMPORT_SECONDS = 90.0
LOOK_SECONDS = 120.0

BINDERS = ("KMP_AFFINITY", "GOMP_CPU_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")

CURES = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")


def deep_findings(facts: HostFacts, host: Host) -> tuple[Finding, ...]:
    """What the children found, the worst first. They are started one after the other."""
    if not host.live:
        return (SKIPPED.finding("this is a recorded machine: no child can be started on it"),)
    if facts.package("torch") is None:
        return (SKIPPED.finding("torch is not installed"),)
    looks: tuple[Callable[[HostFacts, Host], Iterator[Finding]], ...] = (
        imports,
        process,
        product,
        limits,
    )
    found: list[Finding] = []
    for look in looks:
        try:
            found += look(facts, host)
        except OSError as error:
            found.append(SKIPPED.finding(f"{look.__name__}: no child could be started: {error}"))
    return by_severity(found)


def imports(facts: HostFacts, host: Host) -> Iterator[Finding]:
    """Import IPEX and the oneCCL bindings, where they are installed, each in a child."""
    versions = versions_of(facts)
    modules = []
    if facts.package("intel_extension_for_pytorch") is not None:
        modules.append("intel_extension_for_pytorch")
    if versions.oneccl is not None:
        modules.append(oneccl_module(versions))
    for module in modules:
        code = f"import torch, {module}"
        argv = (host.executable, "-c", ELSEWHERE + code)
        done = host.run(Command(argv=argv, timeout_seconds=IMPORT_SECONDS))
        if done.returncode == 0:
            continue
        remedy, command = both_ways(versions)
        if "libccl.so" in done.stderr:
            remedy, command = "Source setvars.sh of the bindings.", None
        yield IMPORT_FAILS.finding(
            f"python -c '{code}' {_ended(done)}", remedy=remedy, command=command
        )


def process(facts: HostFacts, host: Host) -> Iterator[Finding]:
    """The CPUs and the OpenMP runtimes of a process that imports torch and transformers."""
    names = [name for name in ("transformers",) if facts.package(name) is not None]
    done = host.run(Command(argv=_script(host, "process.py", *names), timeout_seconds=LOOK_SECONDS))
    told = _told(done)
    before, after = told.get("affinity_before"), told.get("affinity_after")
    if after is None:
        yield from _died("importing torch", done)
        return
    if before is not None and set(after) < set(before):
        binders = [name for name in BINDERS if value(facts, name)]
        text = f"CPUs {cpulist.render(before)} before import torch, {cpulist.render(after)} after"
        if binders:
            text += "; " + ", ".join(f"{name}={value(facts, name)}" for name in binders)
        yield AFFINITY.finding(text, command=f"unset {' '.join(binders)}" if binders else None)
    libraries = told.get("openmp_all") or told.get("openmp_torch") or []
    if len(libraries) > 1:
        torch_has = set(told.get("openmp_torch") or [])
        others = [path for path in libraries if path not in torch_has] or libraries[1:]
        text = f"{len(libraries)} runtimes: {', '.join(libraries)}"
        yield OPENMP.finding(text, remedy=f"Drop what brings {', '.join(others)}.")
    for name, said in filter(None, (told.get("import_failed"),)):
        yield IMPORT_FAILS.finding(f"import {name}: {said}")


def product(facts: HostFacts, host: Host) -> Iterator[Finding]:
    """Multiply on one core: what oneDNN uses, and what bf16 brings."""
    done = _multiply(host)
    if done.returncode is not None and done.returncode == -signal.SIGILL:
        yield _illegal(facts, host)
        return
    seconds = _told(done).get("seconds")
    if seconds is None:
        yield from _died("a matrix product", done)
        return
    isa = _isa(done.stdout)
    missing = _missing(facts, isa) if isa else None
    if missing:
        held = [n for n in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA") if value(facts, n)]
        yield ISA.finding(
            f"the CPU shows {missing}, oneDNN says: {isa}",
            command=f"unset {' '.join(held)}" if held else None,
        )
    ratio = seconds["fp32"] / seconds["bf16"]
    kernel = _kernel(done.stdout)
    text = (
        f"bf16 is {ratio:.2f} times as fast as fp32 on one core "
        f"({1000 * seconds['bf16']:.1f} ms against {1000 * seconds['fp32']:.1f} ms"
        + (f", kernel {kernel})" if kernel else ")")
    )
    promised = "bf16" in native_precisions(facts)
    slow = promised and ratio < 1
    yield RATIO.finding(text, severity=Severity.WARNING if slow else Severity.ADVICE)


def limits(facts: HostFacts, host: Host) -> Iterator[Finding]:
    """What all cores reach at most, in products and from memory."""
    argv = (host.executable, str(limits_script()))
    done = host.run(Command(argv=argv, timeout_seconds=LOOK_SECONDS))
    reached = _told(done).get("limits")
    if reached is None:
        yield from _died("a measurement of all cores", done)
        return
    threads = "one thread" if reached["threads"] == 1 else f"{reached['threads']} threads"
    yield LIMITS.finding(
        f"with {threads}: {reached['fp32']:.0f} GFLOP/s in fp32, {reached['bf16']:.0f} in bf16, "
        f"{reached['memory']:.0f} GB/s from memory"
    )


def _multiply(host: Host, **variables: str) -> Completed:
    environment = {**host.environment(), "ONEDNN_VERBOSE": "1", **variables}
    return host.run(
        Command(
            argv=_script(host, "product.py"), environment=environment, timeout_seconds=LOOK_SECONDS
        )
    )


def _illegal(facts: HostFacts, host: Host) -> Finding:
    """The finding, with the highest instruction set under which the product works."""
    cure = next(
        (isa for isa in CURES if _multiply(host, ONEDNN_MAX_CPU_ISA=isa).returncode == 0), None
    )
    flags = [flag for flag in facts.cpu.isa if flag.startswith(("amx", "avx512"))]
    text = f"a matrix product ended with SIGILL; the CPU shows {', '.join(flags) or 'no such flag'}"
    if cure is None:
        return ILLEGAL.finding(text, remedy="No ONEDNN_MAX_CPU_ISA helps: reinstall torch.")
    return ILLEGAL.finding(
        f"{text}; with ONEDNN_MAX_CPU_ISA={cure} it works",
        command=f"export ONEDNN_MAX_CPU_ISA={cure}",
    )


def _missing(facts: HostFacts, isa: str) -> str | None:
    """The best flag of the CPU that oneDNN's own words do not cover."""
    for flag, word in (("amx_bf16", "AMX"), ("avx512_bf16", "bfloat16"), ("avx512f", "AVX-512")):
        if facts.cpu.has(flag):
            newer = "AVX10" in isa and flag != "amx_bf16"
            return None if word in isa or newer else flag
    return None


def _isa(output: str) -> str | None:
    marks = (",info,cpu,isa:", ",info,cpu,isa,")
    for line in output.splitlines():
        for mark in marks:
            if line.startswith("onednn_verbose") and mark in line:
                return line.partition(mark)[2].strip()
    return None


def _kernel(output: str) -> str | None:
    for line in output.splitlines():
        fields = line.split(",")
        if line.startswith("onednn_verbose") and "exec" in fields and "bf16" in line:
            kind = fields.index("exec") + 2
            return fields[kind + 1] if len(fields) > kind + 1 else None
    return None


def _script(host: Host, name: str, *arguments: str) -> tuple[str, ...]:
    path = resources.files("cputune.doctor.looks").joinpath(name)
    return (host.executable, str(path), *arguments)


def _told(done: Completed) -> dict[str, Any]:
    """What the child said, line by line; other lines are other programs'."""
    told: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if not line.startswith("{"):
            continue
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict):
            told.update(said)
    return told


def _died(what: str, done: Completed) -> Iterator[Finding]:
    if done.returncode in (0, None):
        yield SKIPPED.finding(f"{what} {_ended(done)}")
    elif done.returncode == -signal.SIGILL:
        yield ILLEGAL.finding(f"{what} ended with SIGILL")
    else:
        yield IMPORT_FAILS.finding(f"{what} {_ended(done)}")


def _ended(done: Completed) -> str:
    """How a child ended, and the last thing it said."""
    # IPEX prints its ERROR on stdout.
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    said = f": {lines[-1][:300]}" if lines else ""
    if done.returncode is None:
        return f"did not end in {done.seconds:.0f} seconds{said}"
    if done.returncode < 0:
        try:
            name = signal.Signals(-done.returncode).name
        except ValueError:
            name = f"signal {-done.returncode}"
        return f"was ended by {name}{said}"
    return f"ended with {done.returncode}{said}"
