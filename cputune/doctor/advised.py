"""How many ranks, threads and oneCCL workers a launch on this machine is advised to have.

Every cure that sets one of these counts takes it from here, so that cures fit together.
"""

from __future__ import annotations

from cputune.cores import usable_cores
from cputune.doctor.variables import local_ranks, number
from cputune.facts import HostFacts


def advised_ranks(facts: HostFacts) -> int:
    """Ranks on this machine: as many as the launcher around us starts, else one per socket.

    Sockets of a single core say nothing about the hardware: there NUMA nodes count. A rank
    has two cores or more.
    """
    started = local_ranks(facts)
    if started:
        return started
    cores = usable_cores(facts)
    for groups in ({core.socket for core in cores}, {core.numa_node for core in cores}):
        if 2 * len(groups) <= len(cores):
            return len(groups) or 1
    return 1


def cores_of_a_rank(facts: HostFacts) -> int:
    """Usable cores that each of the advised ranks has; at least 1."""
    return max(1, len(usable_cores(facts)) // advised_ranks(facts))


def advised_threads(facts: HostFacts) -> int:
    """OpenMP threads of each rank: its cores, less those of its oneCCL workers; at least 1."""
    return cores_of_a_rank(facts) - workers(facts)


def workers(facts: HostFacts) -> int:
    """Workers of oneCCL that each rank should start: as many as are asked for and fit.

    None where the bindings are not installed, one where they would take every core: a core
    is left to the threads.
    """
    asked = 0 if oneccl_absent(facts) else number(facts, "CCL_WORKER_COUNT") or 0
    cores = cores_of_a_rank(facts)
    return asked if asked < cores else min(1, cores - 1)


def oneccl_absent(facts: HostFacts) -> bool:
    """Whether the packages are known, and the oneCCL bindings are not among them."""
    return bool(facts.packages) and not any(
        facts.package(name) for name in ("oneccl_bind_pt", "torch_ccl")
    )
