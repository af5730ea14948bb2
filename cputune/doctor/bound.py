"""Who is bound where: what the environment says about CPUs of ranks, threads and workers."""

from __future__ import annotations

import re

from cputune import cpulist
from cputune.doctor.variables import value
from cputune.facts import HostFacts

MOST_PROCESSES_SHOWN = 16


def bound_parties(facts: HostFacts) -> dict[str, tuple[int, ...]]:
    """CPUs by whoever is bound to them: ranks, OpenMP threads, oneCCL workers, processes."""
    parties: dict[str, tuple[int, ...]] = {}
    for rank, domain in enumerate(pin_domains(facts) or ()):
        parties[f"rank {rank} (I_MPI_PIN_DOMAIN)"] = domain
    for name, cpus in (
        ("OpenMP threads (GOMP_CPU_AFFINITY)", gomp_cpus(facts)),
        ("oneCCL workers (CCL_WORKER_AFFINITY)", ccl_worker_cpus(facts)),
    ):
        if cpus:
            parties[name] = cpus
    for process in facts.bound_processes[:MOST_PROCESSES_SHOWN]:
        parties[f"{process.name} (process {process.pid})"] = process.cpus
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


def omp_binds(facts: HostFacts) -> bool:
    """Whether OMP_PROC_BIND tells the runtime to bind threads."""
    policy = (value(facts, "OMP_PROC_BIND") or "false").lower()
    return policy.split(",")[0].strip() in ("true", "close", "spread", "master", "primary")


def listed_cpus(places: str | None) -> tuple[int, ...] | None:
    """CPUs of an explicit OMP_PLACES, ``{0,1},{2:2}``; None for names such as ``cores``.

    ``{first:count:stride}`` is OpenMP's interval; intervals over whole places
    (``{0}:4``) are read too.
    """
    if places is None or "{" not in places:
        return None
    cpus: set[int] = set()
    for body, count_text, stride_text in re.findall(r"\{([^}]*)\}(?::(\d+))?(?::(-?\d+))?", places):
        place: set[int] = set()
        for part in body.split(","):
            numbers = part.split(":")
            if not all(re.fullmatch(r"\s*\d{1,6}\s*", text) for text in numbers):
                return None
            first, length, step = (*map(int, numbers), *(1, 1)[len(numbers) - 1 :])[:3]
            place.update(range(first, first + min(length, 4096) * step, max(1, step)))
        shift = int(stride_text or 1)
        for index in range(min(int(count_text or 1), 4096)):
            cpus.update(cpu + index * shift for cpu in place)
    return tuple(sorted(cpu for cpu in cpus if cpu >= 0))


def gomp_cpus(facts: HostFacts) -> tuple[int, ...] | None:
    """CPUs of GOMP_CPU_AFFINITY: lists and ranges with strides, ``0 3 1-2 4-15:2``."""
    text = value(facts, "GOMP_CPU_AFFINITY")
    if text is None:
        return None
    cpus: set[int] = set()
    for part in re.split(r"[\s,]+", text):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?", part)
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
