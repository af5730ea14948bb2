"""What a diagnosis cannot do without, and did not find."""

from __future__ import annotations

from collections.abc import Iterator

from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.facts import HostFacts


@check(
    "facts-missing",
    Severity.WARNING,
    title="The doctor cannot see basic facts of this machine",
    remedy="Look at /proc and /sys of this machine (or record it again with doctor --record).",
    source="https://docs.kernel.org/admin-guide/cputopology.html",
)
def facts_missing(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: few findings, and many facts that are unknown.

    Cause: /proc or /sys is not mounted, is hidden by a sandbox, or a recording is empty
    or damaged. Checks stay silent on what is unknown, so that this diagnosis says little.
    """
    topology = facts.topology
    if not topology.online:
        yield facts_missing.finding(_because(facts, "no CPU can be seen", "topology.online"))
    elif not topology.cores_known:
        yield facts_missing.finding(
            _because(facts, "which CPUs are one core is not told", "topology.physical_cores"),
            severity=Severity.ADVICE,
        )
    if facts.why_unknown("cpu.isa"):
        yield facts_missing.finding(
            _because(facts, "the instructions of the CPU are not told", "cpu.isa"),
            severity=Severity.ADVICE if topology.online else None,
        )


def _because(facts: HostFacts, what: str, fact: str) -> str:
    reason = facts.why_unknown(fact)
    return f"{what}: {reason}" if reason else what


CHECKS: tuple[Check, ...] = (facts_missing,)
