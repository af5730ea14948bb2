"""``cputune doctor --deep``: looks that cost time or may kill, each in a child.

A mismatched IPEX ends the interpreter that imports it, the oneCCL bindings abort, a
hypervisor may show AMX and not give it: what happens there happens in a child with a
timeout, and how it ended is the evidence. A look that cannot be taken says why.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from cputune import cpulist
from cputune.doctor.finding import Finding, Severity, by_severity, checks_of, fault
from cputune.doctor.variables import value
from cputune.facts import HostFacts
from cputune.host import Command, Completed, Host
from cputune.host.interpreter import ELSEWHERE
from cputune.inside import limits_script
from cputune.knobs.precision import native_precisions
from cputune.stack import oneccl_module, versions_of
from cputune.stack.ways import both_ways

LOOK_SECONDS = 120.0

BINDERS = ("KMP_AFFINITY", "GOMP_CPU_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")

CURES = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")


def deep_findings(facts: HostFacts, host: Host) -> tuple[Finding, ...]:
    """What the children found, the worst first. They are started one after the other."""
    if not host.live:
        return (skipped.finding("this is a recorded machine: no child can be started on it"),)
    if facts.package("torch") is None:
        return (skipped.finding("torch is not installed"),)
    found: list[Finding] = []
    for look in (imports, process, product, limits):
        try:
            found += look(facts, host)
        except OSError as error:
            found.append(skipped.finding(f"{look.__name__}: no child could be started: {error}"))
    return by_severity(found)


def imports(facts: HostFacts, host: Host) -> Iterator[Finding]:
    """Import IPEX and the oneCCL bindings, where they are installed, each in a child."""
    versions = versions_of(facts)
    modules = ["intel_extension_for_pytorch"] if versions.ipex is not None else []
    if versions.oneccl is not None:
        modules.append(oneccl_module(versions))
    for module in modules:
        code = f"import torch, {module}"
        argv = (host.executable, "-c", ELSEWHERE + code)
        done = host.run(Command(argv=argv, timeout_seconds=LOOK_SECONDS))
        if done.returncode == 0:
            continue
        remedy, command = both_ways(versions)
        if "libccl.so" in done.stderr:
            remedy, command = "Source setvars.sh of the bindings.", None
        said = f"python -c '{code}' {how_it_ended(done)}"
        yield import_fails.finding(said, remedy=remedy, command=command)


def process(facts: HostFacts, host: Host) -> Iterator[Finding]:
    """The CPUs and the OpenMP runtimes of a process that imports torch and transformers."""
    names = ["transformers"] if facts.package("transformers") is not None else []
    done = _run(host, "process.py", *names)
    told = _told(done)
    before, after = told.get("affinity_before", ()), told.get("affinity_after")
    if after is None:
        yield from _died("importing torch", done)
        return
    if set(after) < set(before):
        binders = [name for name in BINDERS if value(facts, name)]
        text = f"CPUs {cpulist.render(before)} before import torch, {cpulist.render(after)} after"
        text += "".join(f"; {name}={value(facts, name)}" for name in binders)
        yield affinity_lost.finding(text, command=f"unset {' '.join(binders)}" if binders else None)
    libraries = told.get("openmp_all") or told.get("openmp_torch") or []
    if len(libraries) > 1:
        others = [path for path in libraries if path not in told.get("openmp_torch", ())]
        text = f"{len(libraries)} runtimes: {', '.join(libraries)}"
        drop = f"Drop what brings {', '.join(others or libraries[1:])}."
        yield several_openmp.finding(text, remedy=drop)
    if "import_failed" in told:
        yield import_fails.finding("import " + ": ".join(told["import_failed"]))


def product(facts: HostFacts, host: Host) -> Iterator[Finding]:
    """Multiply on one core: what oneDNN uses, and what bf16 brings."""
    done = _run(host, "product.py", ONEDNN_VERBOSE="1")
    seconds = _told(done).get("seconds")
    if done.returncode == -signal.SIGILL:
        # the highest instruction set under which it works
        tried = (i for i in CURES if not _run(host, "product.py", ONEDNN_MAX_CPU_ISA=i).returncode)
        cure = next(tried, None)
        flags = [flag for flag in facts.cpu.isa if flag.startswith(("amx", "avx512"))]
        yield illegal_instruction.finding(
            "a matrix product ended with SIGILL; the CPU shows "
            + (", ".join(flags) or "no such flag"),
            remedy=None if cure else "No ONEDNN_MAX_CPU_ISA helps: reinstall torch.",
            command=cure and f"export ONEDNN_MAX_CPU_ISA={cure}",
        )
        return
    if seconds is None:
        yield from _died("a matrix product", done)
        return
    isa = re.search(r"^onednn_verbose.*,info,cpu,isa[:,](.*)$", done.stdout, re.MULTILINE)
    missing = _missing(facts, isa[1]) if isa else None
    if isa and missing:
        held = [n for n in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA") if value(facts, n)]
        yield isa_below.finding(
            f"the CPU shows {missing}, oneDNN says: {isa[1]}",
            command=f"unset {' '.join(held)}" if held else None,
        )
    ratio = seconds["fp32"] / seconds["bf16"]
    kernel = re.search(r"^onednn_verbose.*,exec,cpu,\w+,([^,]+),.*bf16", done.stdout, re.MULTILINE)
    slow = "bf16" in native_precisions(facts) and ratio < 1
    yield bf16_ratio.finding(
        f"bf16 is {ratio:.2f} times as fast as fp32 on one core "
        f"({1000 * seconds['bf16']:.1f} ms against {1000 * seconds['fp32']:.1f} ms"
        + (f", kernel {kernel[1]})" if kernel else ")"),
        severity=Severity.WARNING if slow else None,
    )


def limits(facts: HostFacts, host: Host) -> Iterator[Finding]:
    """What all cores reach at most, in products and from memory."""
    done = _run(host, limits_script())
    reached = _told(done).get("limits")
    if reached is None:
        yield from _died("a measurement of all cores", done)
        return
    threads = "one thread" if reached["threads"] == 1 else f"{reached['threads']} threads"
    yield reached_at_most.finding(
        f"with {threads}: {reached['fp32']:.0f} GFLOP/s in fp32, "
        f"{reached['bf16']:.0f} in bf16, {reached['memory']:.0f} GB/s from memory"
    )


def _run(host: Host, script: str | Path, *arguments: str, **variables: str) -> Completed:
    """One look, in a child: a script of ours by its name, or any by its path."""
    path = resources.files("cputune.doctor.looks").joinpath(str(script))
    argv = (host.executable, str(path), *arguments)
    environment = {**host.environment(), **variables} if variables else None
    return host.run(Command(argv=argv, environment=environment, timeout_seconds=LOOK_SECONDS))


def _missing(facts: HostFacts, isa: str) -> str | None:
    """The best flag of the CPU that oneDNN's own words do not cover."""
    for flag, word in (("amx_bf16", "AMX"), ("avx512_bf16", "bfloat16"), ("avx512f", "AVX-512")):
        if facts.cpu.has(flag):
            newer = "AVX10" in isa and flag != "amx_bf16"
            return None if word in isa or newer else flag
    return None


def _told(done: Completed) -> dict[str, Any]:
    """What the child said, line by line; other lines are other programs'."""
    told: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        with suppress(ValueError):
            said = json.loads(line)
            told.update(said if isinstance(said, dict) else {})
    return told


def _died(what: str, done: Completed) -> Iterator[Finding]:
    if done.returncode in (0, None):
        yield skipped.finding(f"{what} {how_it_ended(done)}")
    elif done.returncode == -signal.SIGILL:
        yield illegal_instruction.finding(f"{what} ended with SIGILL")
    else:
        yield import_fails.finding(f"{what} {how_it_ended(done)}")


def how_it_ended(done: Completed) -> str:
    """How a child ended, and the last thing it said."""
    # IPEX prints its ERROR on stdout.
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    said = f": {lines[-1][:300]}" if lines else ""
    code = done.returncode
    if code is None:
        return f"did not end in {done.seconds:.0f} seconds{said}"
    if -code in set(signal.Signals):
        return f"was ended by {signal.Signals(-code).name}{said}"
    return f"ended with {code}{said}"


@fault("deep-illegal-instruction", Severity.ERROR)
def illegal_instruction() -> None:
    """The CPU shows instructions that it does not execute

    Symptom: "Illegal instruction" at the first bf16 product.

    Cause: the hypervisor or the kernel shows AMX or AVX-512 flags and does not let the
    process use them. oneDNN can be told to stay below: ONEDNN_MAX_CPU_ISA.

    Remedy: Keep oneDNN from using them (ONEDNN_MAX_CPU_ISA).

    Source: uxlfoundation/oneDNN#5689
    """


@fault("deep-import", Severity.ERROR)
def import_fails() -> None:
    """A package cannot be imported

    Symptom: the interpreter ends with 127, an abort, or an undefined symbol.

    Cause: the package was built for another torch, or a library that it needs is not on
    LD_LIBRARY_PATH. It was really imported, in a child, and this is how the child ended.

    Remedy: Install a version that fits; cputune doctor names the pair.

    Source: intel/intel-extension-for-pytorch#811, intel/torch-ccl#59, intel/torch-ccl#43
    """


@fault("deep-affinity", Severity.ERROR)
def affinity_lost() -> None:
    """Importing torch takes CPUs away from the process

    Symptom: everything runs on CPU 0, DataLoader workers too.

    Cause: an OpenMP runtime that is told to bind (KMP_AFFINITY, GOMP_CPU_AFFINITY,
    OMP_PROC_BIND) binds the main thread, and what it starts later inherits that mask. The
    masks were read before and after torch computed its first product.

    Remedy: Unset the variable that binds, and bind the process from outside instead.

    Source: pytorch/pytorch#91989, pytorch/pytorch#99625, pytorch/pytorch#101850
    """


@fault("deep-openmp-two", Severity.WARNING)
def several_openmp() -> None:
    """Several OpenMP runtimes are loaded into one process

    Symptom: "OMP: Error #15", or twice as many threads as asked for, and slow.

    Cause: torch, scikit-learn, MKL and others bring an OpenMP runtime each. Each has a team
    of its own, and they spin against each other. The libraries are those that /proc/self/maps
    showed after torch and transformers were imported.

    Remedy: Preload the one that torch should use, or install the packages from one place.

    Source: pytorch/pytorch#98836, pytorch/pytorch#13806
    """


@fault("deep-isa", Severity.WARNING)
def isa_below() -> None:
    """oneDNN uses less than the CPU shows

    Symptom: bf16 is no faster than fp32 on a CPU with AMX.

    Cause: ONEDNN_MAX_CPU_ISA, a kernel that does not grant AMX, or an old oneDNN. The
    instruction set is the one that oneDNN itself printed (ONEDNN_VERBOSE=1).

    Remedy: Unset what limits the instruction set, or install a torch that knows this CPU.

    Source: https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
    """


@fault("deep-bf16-ratio", Severity.ADVICE)
def bf16_ratio() -> None:
    """The speed of bf16 against fp32 on one core

    One core multiplied the same matrices in fp32 and in bf16, in turns, and these
    are the medians. A training step gains less: only its matrix products change.

    Remedy: Train in the faster one: --bf16 --use_cpu, or neither.

    Source: pytorch/pytorch#86270, pytorch/pytorch#118499, pytorch/pytorch#111456
    """


@fault("deep-limits", Severity.ADVICE)
def reached_at_most() -> None:
    """What all cores reach at most

    All threads that torch takes multiplied two matrices of 2048 × 2048 numbers, and
    passed over memory that no cache holds (a = b + s * c). The best of some tries counts, so that
    a neighbour lowers the numbers less. A training step comes to a part of it: its matrices are
    smaller, and not all of it is products.

    Remedy: Hold the speed of a training against it: `cputune tune` says how far it is from it.

    Source: https://www.cs.virginia.edu/stream/ref.html (triad)
    """


@fault("deep-skipped", Severity.ADVICE)
def skipped() -> None:
    """A part of --deep could not be run

    --deep starts children that import torch. Where torch is not installed, or the
    machine is a recording, there is nothing to start; a child that does not end in time, or
    says nothing, proves nothing.

    Remedy: Nothing to mend: this part of --deep has no result here.

    Source: https://pytorch.org/get-started/locally/
    """


CHECKS = checks_of(__name__)
