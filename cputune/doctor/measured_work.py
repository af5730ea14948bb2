"""Five seconds of real work compared with what this CPU should reach, and the likely cause.

``looks/work.py`` does the work. Expected: usable cores × frequency × operations per cycle of the
widest instructions (Intel 64 and IA-32 Architectures Optimization Reference Manual; AMD Software
Optimization Guides for Zen 4 and Zen 5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cputune.doctor.checks import limits, machine, restraints, threads
from cputune.doctor.deep import messages_of, run_look, skipped
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.host import Host
from cputune.host.facts import Cpu, HostFacts
from cputune.plans.cores import usable_cores

# Share of the expected speed below which a cause is looked for.
ENOUGH = 0.5

_FLOPS_PER_CYCLE = (
    # an instruction set: fp32 operations of a core in a cycle, two units of fused multiply-add
    ("avx512f", 64),
    ("avx2", 32),
    ("avx", 16),
    ("sse4_2", 8),
)
_FEWER_FLOPS = {
    # a generation: operations of its widest instructions, done in two halves or by one unit
    "Zen 4": ("avx512f", 32),
    "Sierra Forest": ("avx2", 16),
}
# Names of Skylake-SP and Cascade Lake with one unit for AVX-512 (Intel ARK).
_ONE_UNIT = re.compile(r"\b(?:Bronze|Silver|Gold 5[12](?!22)\d\d)\b")

# Checks for what makes such work slow, the likeliest first.
_CAUSES = (
    restraints.cpu_emulated,
    restraints.isa_hidden,
    threads.threads_affinity,
    limits.quota_throttled,
    limits.quota_threads,
    restraints.frequency_capped,
    restraints.priority_low,
    restraints.cpu_weight,
    machine.cpu_steal,
    machine.machine_busy,
    restraints.memory_high,
    restraints.memory_remote,
    restraints.thermal_throttled,
)


def work(facts: HostFacts, host: Host) -> Iterator[Finding]:
    """The finding of five seconds of work; advice if the expected speed is reached."""
    measured: dict[str, Any] = {}
    done = run_look(host, "work.py")
    for message in messages_of(done):
        measured |= message
    if "fp32_gflops" not in measured:
        yield skipped.finding(f"the work did not end in {done.seconds:.0f} seconds")
        return
    parts = [_thread_words(measured), f"fp32 {measured['fp32_gflops']:.0f} GFLOP/s"]
    if "bf16_gflops" in measured:
        parts.append(f"bf16 {measured['bf16_gflops']:.0f} GFLOP/s")
    if "copy_gb_per_second" in measured:
        parts.append(f"memory {measured['copy_gb_per_second']:.0f} GB/s")
    if "all_reduce_gb_per_second" in measured:
        parts.append(f"all-reduce over loopback {measured['all_reduce_gb_per_second']:.1f} GB/s")
    expected = expected_gflops(facts, measured.get("mhz") or 0.0)
    if expected is None:
        yield proof.finding(f"{', '.join(parts)}; the expected speed of this CPU is not known")
        return
    share = measured["fp32_gflops"] / expected
    summary = (
        f"{100 * share:.0f} % of the {expected:.0f} GFLOP/s (fp32) that {_of_what(facts, measured)}"
    )
    if share >= ENOUGH:
        yield proof.finding(f"{summary}; {', '.join(parts)}")
        return
    yield proof.finding(
        f"{summary}; {_cause(facts, measured)}; {', '.join(parts)}",
        severity=Severity.WARNING,
        remedy="Fix the cause in the evidence, then measure again.",
    )


def expected_gflops(facts: HostFacts, megahertz: float) -> float | None:
    """What the usable cores could do in fp32; None if the CPU's instructions are not known."""
    per_cycle = _per_cycle(facts.cpu)
    if per_cycle is None or megahertz <= 0:
        return None
    return len(usable_cores(facts)) * megahertz * per_cycle / 1000


def _per_cycle(cpu: Cpu) -> int | None:
    if cpu.architecture != "x86_64":
        return None
    for flag, flops in _FLOPS_PER_CYCLE:
        if cpu.has(flag):
            of_generation = _FEWER_FLOPS.get(cpu.codename or "")
            if of_generation is not None and of_generation[0] == flag:
                return of_generation[1]
            early = cpu.codename in ("Skylake-SP", "Cascade Lake")
            if early and _ONE_UNIT.search(cpu.model_name or ""):
                return flops // 2
            return flops
    return None


def _of_what(facts: HostFacts, measured: Mapping[str, Any]) -> str:
    units = next((flag for flag, _ in _FLOPS_PER_CYCLE if facts.cpu.has(flag)), "")
    cores = len(usable_cores(facts))
    many = "s"
    if cores == 1:
        many = ""
    return f"{cores} core{many} with {units} give at {measured['mhz'] / 1000:.1f} GHz"


def _thread_words(measured: Mapping[str, Any]) -> str:
    """How many threads ran, and how much CPU time they used."""
    ran, threads, busy = measured["ran"], measured["threads"], measured["busy"]
    return f"{ran} of {threads} threads ran, {busy:.1f} CPUs in use"


def _cause(facts: HostFacts, measured: Mapping[str, Any]) -> str:
    for check in _CAUSES:
        for finding in check(facts):
            return f"likely cause: {finding.code}, {finding.evidence}"
    if measured["busy"] < ENOUGH * measured["threads"]:
        return "the threads had too little CPU time, for an unknown reason"
    return (
        "the threads had their CPU time: two CPUs may be one core of the host, or it is throttled"
    )


@fault("deep-work", Severity.ADVICE)
def proof() -> None:
    """What this machine reaches in real work

    All threads multiplied matrices in fp32 and in bf16 and copied memory, a second each; two ranks
    exchanged 64 MiB over loopback. The share compares fp32 with what the cores could do at the
    frequency that the kernel shows. Caps, emulation, hidden instructions, low priorities, remote
    memory and other processes lower it.

    Remedy: Nothing to fix: the machine reaches what it should.

    Source: https://www.intel.com/content/www/us/en/developer/articles/technical/intel-sdm.html,
    https://docs.amd.com/v/u/en-US/58455_1.00
    """


CHECKS = checks_of(__name__)
