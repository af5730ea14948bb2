"""A machine of which nothing is known, to say in a test what is."""

from __future__ import annotations

from cputune import HostFacts
from cputune.host.facts import Cpu, Limits, Load, Memory, Settings, Topology

UNKNOWN = HostFacts(
    cpu=Cpu(
        vendor=None,
        model_name=None,
        codename=None,
        family=None,
        model=None,
        stepping=None,
        architecture=None,
        hypervisor=None,
        isa=(),
    ),
    topology=Topology(cores=(), online=(), present=None, allowed=(), numa_nodes=()),
    limits=Limits(
        cpu_quota=None,
        cpuset=None,
        memory_bytes=None,
        shm_bytes=None,
        open_files=None,
        memlock_bytes=None,
    ),
    memory=Memory(
        total_bytes=None, available_bytes=None, swap_total_bytes=None, swap_free_bytes=None
    ),
    settings=Settings(
        governor=None,
        turbo=None,
        transparent_huge_pages=None,
        numa_balancing=None,
        smt=None,
        kernel=None,
        container=None,
    ),
    load=Load(
        average_1min=None,
        cpu_pressure_percent=None,
        memory_pressure_percent=None,
        steal_share=None,
    ),
    python=None,
)
