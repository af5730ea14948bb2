"""A machine on which the doctor finds nothing, and how to break it.

    faulty = changed(limits={"cpu_quota": 8.0}, environment={"OMP_NUM_THREADS": "64"})

Mappings replace fields of the part they name; ``environment`` adds to the variables (None
removes one), ``packages`` to the packages by name (None removes, a text is the version).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cputune import Finding, HostFacts
from cputune.doctor.finding import Check
from cputune.host.facts import (
    Core,
    Cpu,
    Launcher,
    Library,
    Limits,
    Load,
    Memory,
    Network,
    NumaNode,
    Package,
    Settings,
    Topology,
)

GIB = 1 << 30


def topology(
    *,
    sockets: int = 2,
    cores: int = 28,
    smt: int = 2,
    together: bool = False,
    nodes_per_socket: int = 1,
    allowed: tuple[int, ...] | None = None,
    **fields: Any,
) -> Topology:
    """Sockets of equal cores; siblings apart (as servers) or side by side (as clouds)."""
    total = sockets * cores
    made = []
    for number in range(total):
        cpus = (
            tuple(range(number * smt, number * smt + smt))
            if together
            else tuple(number + thread * total for thread in range(smt))
        )
        node = number * nodes_per_socket // cores
        made.append(Core(cpus=cpus, socket=number // cores, numa_node=node))
    online = tuple(sorted(cpu for core in made for cpu in core.cpus))
    numa = tuple(
        NumaNode(
            id=node,
            cpus=tuple(sorted(cpu for c in made if c.numa_node == node for cpu in c.cpus)),
            memory_bytes=256 * GIB,
            free_bytes=200 * GIB,
        )
        for node in range(sockets * nodes_per_socket)
    )
    values: dict[str, Any] = {
        "cores": tuple(made),
        "online": online,
        "present": online,
        "allowed": online if allowed is None else allowed,
        "numa_nodes": numa,
    }
    return Topology(**{**values, **fields})


AMX = ("amx_bf16", "amx_int8", "amx_tile", "avx2", "avx512_bf16", "avx512_fp16", "avx512_vnni")
SAPPHIRE_RAPIDS = Cpu(
    vendor="GenuineIntel",
    model_name="Intel(R) Xeon(R) Platinum 8480+",
    codename="Sapphire Rapids",
    family=6,
    model=143,
    stepping=8,
    architecture="x86_64",
    hypervisor=False,
    isa=tuple(sorted((*AMX, "avx512f"))),
)
CASCADE_LAKE_ISA = ("avx2", "avx512_vnni", "avx512f")
TCMALLOC = "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4"

CLEAN = HostFacts(
    cpu=SAPPHIRE_RAPIDS,
    topology=topology(),
    limits=Limits(
        cpu_quota=None,
        cpuset=None,
        memory_bytes=None,
        shm_bytes=256 * GIB,
        open_files=65536,
        memlock_bytes=None,
    ),
    memory=Memory(
        total_bytes=512 * GIB,
        available_bytes=500 * GIB,
        swap_total_bytes=8 * GIB,
        swap_free_bytes=8 * GIB,
    ),
    settings=Settings(
        governor="performance",
        turbo=True,
        transparent_huge_pages="madvise",
        numa_balancing=False,
        smt="on",
        kernel="6.8.0-45-generic",
        container=None,
    ),
    load=Load(
        average_1min=0.2,
        cpu_pressure_percent=0.1,
        memory_pressure_percent=0.0,
        steal_share=0.0,
    ),
    python="3.12.4",
    packages=tuple(
        Package(name=name, version=version, location="/venv", installer="pip")
        for name, version in (
            ("torch", "2.13.0+cpu"),
            ("transformers", "5.23.0"),
            ("accelerate", "1.15.0"),
            ("numpy", "2.3.0"),
        )
    ),
    libraries=(Library(name="tcmalloc", path=TCMALLOC),),
    launchers=(Launcher(name="mpirun", path="/usr/bin/mpirun", dialect="mpich", version="4.0"),),
    environment={
        "OMP_NUM_THREADS": "56",
        "ACCELERATE_USE_CPU": "true",
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "LD_PRELOAD": TCMALLOC,
    },
    accelerators=(),
    sys_nice=True,
    network=Network(interfaces=("eth0", "lo"), hostname_addresses=("10.0.0.7",)),
)

IPEX_ERA = {
    "torch": "2.8.0",
    "intel_extension_for_pytorch": "2.8.0",
    "oneccl_bind_pt": "2.8.0+cpu",
    "transformers": "4.56.2",
    "accelerate": "1.7.0",
}


def changed(base: HostFacts = CLEAN, **changes: Any) -> HostFacts:
    """The same machine with what is named made different."""
    values: dict[str, Any] = {}
    for name, change in changes.items():
        now = getattr(base, name)
        if name == "environment":
            merged = {**now, **change}
            values[name] = {key: text for key, text in merged.items() if text is not None}
        elif name == "packages":
            values[name] = _packages(now, change)
        elif isinstance(change, dict):
            values[name] = replace(now, **change)
        else:
            values[name] = change
    return replace(base, **values)


def _packages(
    now: tuple[Package, ...], change: dict[str, str | Package | None]
) -> tuple[Package, ...]:
    kept = [package for package in now if package.name not in change]
    for name, new in change.items():
        if isinstance(new, str):
            new = Package(name=name, version=new, location="/venv", installer="pip")
        if new is not None:
            kept.append(new)
    return tuple(kept)


def words(finding: Finding, check: Check, *, code: bool = False) -> str:
    """Severity and evidence, for a review; the rest where it is not the check's own."""
    named = f"{finding.code}: " if code else ""
    said = [f"{named}{finding.severity.value}: {finding.evidence}"]
    for part in ("title", "remedy", "source"):
        if getattr(finding, part) != getattr(check, part):
            said.append(f"  {part}: {getattr(finding, part)}")
    said += [f"  $ {line}" for line in (finding.command or "").splitlines()]
    return "\n".join((*said, ""))
