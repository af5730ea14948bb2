"""``cputune doctor --deep``: imports and measurements, each in a child process with a timeout.

A mismatched IPEX ends the interpreter that imports it, and a hypervisor may report AMX that does
not work. How the child ended is the evidence.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import resources
from typing import Any

from cputune.doctor.finding import Finding, Severity, by_severity, checks_of, fault
from cputune.doctor.variables import value
from cputune.host import Command, Completed, Host
from cputune.host.facts import HostFacts
from cputune.plans.knobs.precision import native_precisions
from cputune.stack import Versions, oneccl_module, versions_of
from cputune.stack.version_changes import advised_changes
from cputune.text import cpulist
from cputune.text.hidden import without_secrets

# Time limit of a child: torch and IPEX take up to a minute from a slow network disk. Assumed.
LOOK_SECONDS = 120.0

BINDERS = ("KMP_AFFINITY", "GOMP_CPU_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")

LOWER_ISAS = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")


def deep_findings(facts: HostFacts, host: Host) -> tuple[Finding, ...]:
    """The findings of all children, one after the other; the worst first."""
    if not host.live:
        return (skipped.finding("this is a recorded machine: no child can be started on it"),)
    if facts.package("torch") is None:
        return (skipped.finding("torch is not installed"),)
    from cputune.doctor.measured_work import work  # which runs its child as this module does

    findings: list[Finding] = []
    for look in (imports, product, work):
        try:
            findings += look(facts, host)
        except OSError as error:
            findings.append(skipped.finding(f"{look.__name__}: no child could be started: {error}"))
    return by_severity(findings)


def imports(facts: HostFacts, host: Host) -> Iterator[Finding]:
    """Import torch and what is installed with it, each library in its own child."""
    versions = versions_of(facts)
    if facts.package("transformers") is not None:
        modules = ["transformers"]
    else:
        modules = []
    if versions.ipex is not None:
        modules.append("intel_extension_for_pytorch")
    if versions.oneccl is not None:
        modules.append(oneccl_module(versions))
    for module in modules or ["torch"]:
        done = run_look(host, "imports.py", "", *dict.fromkeys(("torch", module)))
        lines = messages_of(done)
        for line in lines:
            if "error" in line:
                message = without_secrets(line["said"], host.environment())
                evidence = f"import {line['module']}: {line['error']}: {message}"
                yield _import_failed(evidence, line["module"], versions)
        loaded = [line for line in lines if "openmp" in line]
        if done.returncode != 0 or not lines:
            trying = next((line["trying"] for line in reversed(lines) if "trying" in line), "torch")
            failed = partial(_import_failed, module=trying, versions=versions)
            yield _ended(f"import {trying}", done, failed)
        elif loaded:
            yield from _of_process(facts, lines[0]["cpus"], loaded[0], loaded[-1])


def _import_failed(message: str, module: str, versions: Versions) -> Finding:
    remedy, command = None, None
    if module not in ("torch", "transformers"):
        remedy, command = advised_changes(versions)
    if "libccl.so" in message:
        remedy, command = "Source setvars.sh of the bindings.", None
    return import_fails.finding(message, remedy=remedy, command=command)


def _of_process(
    facts: HostFacts, before: list[int], torch: dict[str, Any], last: dict[str, Any]
) -> Iterator[Finding]:
    """CPUs that importing torch took away, and the OpenMP runtimes after the last import."""
    after, libraries = torch["cpus"], last["openmp"]
    if set(after) < set(before):
        text = f"CPUs {cpulist.render(before)} before import torch, {cpulist.render(after)} after"
        binders = [name for name in BINDERS if value(facts, name)]
        for name in binders:
            text += f"; {name}={value(facts, name)}"
        yield affinity_lost.finding(text, command=f"unset {' '.join(binders)}" if binders else None)
    if len(libraries) > 1:
        others = []
        for path in libraries:
            if path not in torch["openmp"]:
                others.append(path)
        yield several_openmp.finding(
            f"{len(libraries)} runtimes: {', '.join(libraries)}",
            remedy=f"Remove the package that contains {', '.join(others or libraries[1:])}.",
        )


def product(facts: HostFacts, host: Host) -> Iterator[Finding]:
    """Whether matmuls on one core work, and whether bf16 is faster than fp32."""
    done = run_look(host, "product.py", ONEDNN_VERBOSE="1")
    seconds = next((line["seconds"] for line in messages_of(done) if "seconds" in line), None)
    if done.returncode == -signal.SIGILL:
        # The highest instruction set with which it works is the limit to set.
        limit = None
        for isa in LOWER_ISAS:
            if run_look(host, "product.py", ONEDNN_MAX_CPU_ISA=isa).returncode == 0:
                limit = isa
                break
        flags = []
        for flag in facts.cpu.isa:
            if flag.startswith(("amx", "avx512")):
                flags.append(flag)
        yield illegal_instruction.finding(
            "a matmul ended with SIGILL; the CPU shows "
            + (", ".join(flags) or "neither AMX nor AVX-512"),
            remedy=None if limit else "ONEDNN_MAX_CPU_ISA does not help: reinstall torch.",
            command=limit and f"export ONEDNN_MAX_CPU_ISA={limit}",
        )
        return
    if seconds is None:
        yield _ended("a matrix product", done)
        return
    ratio = seconds["fp32"] / seconds["bf16"]
    kernel = re.search(r"^onednn_verbose.*,exec,cpu,\w+,([^,]+),.*bf16", done.stdout, re.MULTILINE)
    slow = "bf16" in native_precisions(facts) and ratio < 1
    yield bf16_ratio.finding(
        f"bf16 is {ratio:.2f} times as fast as fp32 on one core "
        f"({1000 * seconds['bf16']:.1f} ms against {1000 * seconds['fp32']:.1f} ms"
        + (f", kernel {kernel[1]})" if kernel else ")"),
        severity=Severity.WARNING if slow else None,
    )


def run_look(host: Host, script: str, *arguments: str, **variables: str) -> Completed:
    """Run one of our scripts in a child."""
    path = resources.files("cputune.doctor.looks").joinpath(script)
    argv = (host.executable, str(path), *arguments)
    environment = None
    if variables:
        environment = {**host.environment(), **variables}
    return host.run(Command(argv=argv, environment=environment, timeout_seconds=LOOK_SECONDS))


def messages_of(done: Completed) -> list[dict[str, Any]]:
    """The JSON lines that a child printed."""
    lines = []
    for line in done.stdout.splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict)]


def _ended(what: str, done: Completed, failed: Callable[[str], Finding] | None = None) -> Finding:
    """The finding for a child that ended before its last report."""
    if done.returncode in (0, None):
        return skipped.finding(f"{what} {how_it_ended(done)}")
    if done.returncode == -signal.SIGILL:
        return illegal_instruction.finding(f"{what} ended with SIGILL")
    return (failed or import_fails.finding)(f"{what} {how_it_ended(done)}")


def how_it_ended(done: Completed) -> str:
    """How a child ended, and the last line that it wrote."""
    # IPEX prints its ERROR on stdout.
    lines = []
    for line in (done.stderr or done.stdout).splitlines():
        if line.strip():
            lines.append(line.strip())
    last_line = ""
    if lines:
        last_line = f": {lines[-1][:300]}"
    code = done.returncode
    if code is None:
        return f"did not end in {done.seconds:.0f} seconds{last_line}"
    if -code in set(signal.Signals):
        return f"was ended by {signal.Signals(-code).name}{last_line}"
    return f"ended with {code}{last_line}"


@fault("deep-illegal-instruction", Severity.ERROR)
def illegal_instruction() -> None:
    """The CPU reports instructions that it does not execute

    Symptom: "Illegal instruction" at the first bf16 product.

    Cause: the hypervisor or the kernel reports AMX or AVX-512, but processes cannot use them.

    Remedy: Limit oneDNN to instructions that work: ONEDNN_MAX_CPU_ISA.

    Source: uxlfoundation/oneDNN#5689
    """


@fault("deep-import", Severity.ERROR)
def import_fails() -> None:
    """A package cannot be imported

    Symptom: the interpreter ends with 127, an abort, or an undefined symbol.

    Cause: the package was built for another torch, or a library that it needs is not on
    LD_LIBRARY_PATH. The evidence is how a child ended that imported it.

    Remedy: Install a version that fits; cputune doctor names it.

    Source: intel/intel-extension-for-pytorch#811, intel/torch-ccl#59, intel/torch-ccl#43
    """


@fault("deep-affinity", Severity.ERROR, under=("affinity-shrinks", "affinity-gomp"))
def affinity_lost() -> None:
    """Importing torch takes CPUs away from the process

    Symptom: everything runs on CPU 0, DataLoader workers too.

    Cause: with KMP_AFFINITY, GOMP_CPU_AFFINITY or OMP_PROC_BIND the OpenMP runtime binds the main
    thread to one core, and processes that it starts inherit that. The doctor compared the allowed
    CPUs before importing torch and after the first matmul.

    Remedy: Unset the variable that binds, and bind the process from outside.

    Source: pytorch/pytorch#91989, pytorch/pytorch#99625, pytorch/pytorch#101850
    """


@fault("deep-openmp-two", Severity.WARNING)
def several_openmp() -> None:
    """Several OpenMP runtimes are loaded into one process

    Symptom: "OMP: Error #15", or training with twice as many threads as requested, and slow.

    Cause: torch, scikit-learn, MKL and others each contain an OpenMP runtime with its own threads,
    which compete for the cores. The evidence lists the libraries in /proc/self/maps after importing
    torch and transformers.

    Remedy: Preload the runtime that torch should use, or install all packages with one tool.

    Source: pytorch/pytorch#98836, pytorch/pytorch#13806
    """


@fault("deep-bf16-ratio", Severity.ADVICE)
def bf16_ratio() -> None:
    """The speed of bf16 against fp32 on one core

    One core multiplied the same matrices in fp32 and in bf16 by turns; the evidence has the median
    times. A training step gains less: only its matmuls become faster.

    Remedy: Train in the faster precision: bf16 needs --bf16 --use_cpu.

    Source: pytorch/pytorch#86270, pytorch/pytorch#118499, pytorch/pytorch#111456
    """


@fault("deep-skipped", Severity.ADVICE)
def skipped() -> None:
    """A part of --deep could not be run

    --deep starts child processes that import torch. That is impossible without torch or on a
    recorded machine. A child that does not end in time, or prints nothing, gives no result.

    Remedy: Nothing needs fixing: this part of --deep has no result here.

    Source: https://pytorch.org/get-started/locally/
    """


CHECKS = checks_of(__name__)
