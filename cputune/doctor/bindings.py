"""Who is bound where: what the environment says about CPUs of ranks, threads and workers."""

from __future__ import annotations

import re

from cputune import cpulist
from cputune.doctor.variables import value
from cputune.facts import HostFacts


def bound_parties(facts: HostFacts) -> dict[str, tuple[int, ...]]:
    """CPUs by whoever is bound to them: MPI ranks, OpenMP threads, oneCCL workers."""
    parties: dict[str, tuple[int, ...]] = {}
    for rank, domain in enumerate(pin_domains(facts) or ()):
        parties[f"rank {rank} (I_MPI_PIN_DOMAIN)"] = domain
    for name, cpus in (
        ("OpenMP threads (GOMP_CPU_AFFINITY)", gomp_cpus(facts)),
        ("oneCCL workers (CCL_WORKER_AFFINITY)", ccl_worker_cpus(facts)),
    ):
        if cpus:
            parties[name] = cpus
    return parties


def pin_domains(facts: HostFacts) -> tuple[tuple[int, ...], ...] | None:
    """The masks of ``I_MPI_PIN_DOMAIN=[0x3,0xc]``, one per rank; None for any other form."""
    text = value(facts, "I_MPI_PIN_DOMAIN") or ""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        return tuple(cpulist.parse_mask(mask) for mask in text[1:-1].split(","))
    except ValueError:
        return None


def gomp_cpus(facts: HostFacts) -> tuple[int, ...] | None:
    """CPUs of GOMP_CPU_AFFINITY: lists and ranges with strides, ``0 3 1-2 4-15:2``."""
    text = value(facts, "GOMP_CPU_AFFINITY")
    if text is None:
        return None
    cpus: set[int] = set()
    for part in re.split(r"[\s,]+", text):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            return None
        first, last, step = (int(g) if g else None for g in match.groups())
        assert first is not None
        if (last or first) >= cpulist.MAX_CPUS:
            return None
        cpus.update(range(first, (first if last is None else last) + 1, step or 1))
    return tuple(sorted(cpus))


def ccl_worker_cpus(facts: HostFacts) -> tuple[int, ...] | None:
    """CPUs of CCL_WORKER_AFFINITY, ``0,1,28-29``; None for ``auto`` and what is no list."""
    text = value(facts, "CCL_WORKER_AFFINITY")
    if text is None:
        return None
    try:
        return cpulist.parse(text)
    except ValueError:
        return None
