"""What variables say about launcher, threads and libraries; the launch that is advised.

Every fix that sets ranks, threads or workers uses it, so that commands agree with each other and
with the plan of ``cputune emit``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from cputune.doctor.finding import Check, Finding
from cputune.host.facts import HostFacts, Launcher
from cputune.launch.launchers.mpirun import cores_of_each, is_hydra, is_openmpi
from cputune.plans.layout import Advice, advise
from cputune.text import cpulist
from cputune.text.documents import packaged_toml

INTEL_OPENMP = r"libiomp5|libomp\.so"
TRUE = ("1", "true", "yes", "y", "on", "t", "enable")


@cache
def variable_rows(kind: str) -> tuple[Mapping[str, Any], ...]:
    """The rows of this kind in ``checks/variables.toml``."""
    return tuple(packaged_toml("cputune.doctor.checks", "variables.toml")[kind])


def value(facts: HostFacts, name: str) -> str | None:
    """A variable without surrounding white space; None if it is unset or empty."""
    return facts.environment.get(name, "").strip() or None


def is_true(facts: HostFacts, name: str) -> bool:
    """Whether a variable means yes, as Hugging Face and Intel spell it."""
    return (value(facts, name) or "").lower() in TRUE


def number(facts: HostFacts, *names: str) -> int | None:
    """The first of these variables with a whole number, as OpenMP reads it.

    OMP_NUM_THREADS may be a list for nested regions (``8,2``); the first counts.
    """
    for name in names:
        text = (value(facts, name) or "").split(",")[0].strip()
        if re.fullmatch(r"[0-9]{1,9}", text):
            return int(text)
    return None


def unset(asking: Check, facts: HostFacts, name: str, because: str = "") -> Finding:
    """The finding that a variable does harm; its command unsets it."""
    return asking.finding(f"{name}={value(facts, name)}{because}", command=f"unset {name}")


def local_ranks(facts: HostFacts) -> int | None:
    """Ranks on this machine, from the variables of a launcher; None outside a launcher."""
    mpi = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    return number(facts, "LOCAL_WORLD_SIZE", *mpi, "PET_NPROC_PER_NODE")


def world_size(facts: HostFacts) -> int | None:
    """The same of the whole job."""
    return number(facts, "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


def rank_threads(facts: HostFacts) -> int | None:
    """OMP_NUM_THREADS of a rank; torchrun sets 1 for several ranks if it is unset.

    See torch/distributed/run.py. None if the ranks start as many as there are cores.
    """
    several = (local_ranks(facts) or 1) > 1
    unset = value(facts, "OMP_NUM_THREADS") is None
    if unset and several and under_torchrun(facts):
        return 1
    return number(facts, "OMP_NUM_THREADS")


def preloaded(facts: HostFacts) -> list[str]:
    """The entries of LD_PRELOAD; blanks and colons separate them."""
    paths: list[str] = []
    for path in re.split(r"[:\s]+", facts.environment.get("LD_PRELOAD", "")):
        if path:
            paths.append(path)
    return paths


def loads_intel_openmp(facts: HostFacts) -> bool:
    """Whether torch runs on libiomp5: by LD_PRELOAD, or in conda's torch (pip's has libgomp)."""
    torch = facts.package("torch")
    by_conda = torch is not None and torch.installer == "conda"
    return by_conda or any(re.search(INTEL_OPENMP, path) for path in preloaded(facts))


def lacks_torch(facts: HostFacts) -> bool:
    """Whether torch is certainly not installed; a recording may have no packages at all."""
    packages_known = bool(facts.packages) or (not facts.recorded and facts.python is not None)
    return packages_known and facts.package("torch") is None


def without_gpu(facts: HostFacts) -> bool:
    """Whether training can only run on the CPU: no GPU driver, or torch's CPU build."""
    torch = facts.package("torch")
    cpu_build = torch is not None and (torch.build == "cpu" or "+cpu" in (torch.version or ""))
    return cpu_build or facts.accelerators == ()


def under_mpi(facts: HostFacts) -> bool:
    """Whether an MPI launcher started this process."""
    return any(value(facts, name) for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"))


def under_torchrun(facts: HostFacts) -> bool:
    """Whether torchrun started this process, or its variables (PET_…) are set."""
    return any(
        name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT") or name.startswith("PET_")
        for name in facts.environment
    )


def job_nodes(facts: HostFacts) -> int:
    """Machines of the job, from the variables of a launcher; 1 if they say nothing else."""
    nodes = number(facts, "PET_NNODES", "GROUP_WORLD_SIZE", "SLURM_NNODES")
    if nodes is not None:
        return nodes
    ranks, local = world_size(facts), local_ranks(facts)
    if ranks and local:
        return -(-ranks // local)
    return 1


def pin_domains(facts: HostFacts) -> tuple[tuple[int, ...], ...] | None:
    """The masks of ``I_MPI_PIN_DOMAIN=[0x3,0xc]``, one per rank; None for any other form."""
    text = value(facts, "I_MPI_PIN_DOMAIN") or ""
    with suppress(ValueError):
        if text.startswith("[") and text.endswith("]"):
            return tuple(cpulist.parse_mask(mask) for mask in text[1:-1].split(","))
    return None


def openmp_binders(facts: HostFacts) -> list[str]:
    """The variables by which the OpenMP runtime of a process here binds its threads."""
    kmp = re.split(r"[,=]", (value(facts, "KMP_AFFINITY") or "none").lower())
    policy = (value(facts, "OMP_PROC_BIND") or "false").lower().split(",")[0].strip()
    binding = {
        "KMP_AFFINITY": loads_intel_openmp(facts) and not {"none", "disabled"} & set(kmp),
        "GOMP_CPU_AFFINITY": value(facts, "GOMP_CPU_AFFINITY") is not None,
        "OMP_PROC_BIND": policy in ("true", "close", "spread", "master", "primary"),
    }
    names: list[str] = []
    for name, binds in binding.items():
        if binds:
            names.append(name)
    return names


def ccl_worker_cpus(facts: HostFacts) -> tuple[int, ...] | None:
    """CPUs of CCL_WORKER_AFFINITY, ``0,1,28-29``; None for ``auto`` and for no list."""
    with suppress(ValueError):
        return cpulist.parse(value(facts, "CCL_WORKER_AFFINITY") or "") or None
    return None


def advised(facts: HostFacts) -> Advice:
    """Ranks and threads for this machine, with the ranks of the current launcher, if any."""
    workers = 0
    if not oneccl_absent(facts):
        workers = number(facts, "CCL_WORKER_COUNT") or 0
    return advise(facts, ranks=local_ranks(facts) or None, ccl_workers=workers)


def advised_launch(facts: HostFacts, script: str = "train.py", *, ccl: bool = False) -> str | None:
    """The command of the advised launch; None if it needs a launcher and none is installed."""
    advice = advised(facts)
    if ccl:
        advice = advise(facts, ranks=advice.ranks, ccl_workers=1)
    variables = f"OMP_NUM_THREADS={advice.threads}"
    if ccl:
        variables += " CCL_WORKER_COUNT=1"
    if advice.ranks == 1:
        narrower = set(advice.cpus) < set(facts.topology.allowed)
        binding = ""
        if narrower:
            binding = f"taskset -c {cpulist.render(advice.cpus)} "
        return f"{variables} {binding}python {script}"
    variables += " ACCELERATE_USE_CPU=true"
    mpirun = mpirun_of(facts)
    if mpirun is not None:
        variables += " MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
        cores = len(advice.cores[0])
        options = cores_of_each(mpirun.dialect, ranks=advice.ranks, cores=cores)
        started = " ".join(("mpirun", "-n", str(advice.ranks), *options))
        return f"{variables} {started} python {script}"
    program = ""
    if facts.package("torch"):
        program = "python -m torch.distributed.run"
    if any(item.name == "torchrun" for item in facts.launchers):
        program = "torchrun"
    if program:
        return f"{variables} {program} --nproc-per-node {advice.ranks} {script}"
    return None


def has_mpirun(facts: HostFacts) -> bool:
    """Whether an MPI launcher is installed, also of an unknown MPI."""
    return any(item.name in ("mpirun", "mpiexec", "mpiexec.hydra") for item in facts.launchers)


def mpi_launchers(facts: HostFacts) -> tuple[Launcher, ...]:
    """Installed launchers of a known MPI."""
    launchers = []
    for item in facts.launchers:
        if is_hydra(item.dialect) or is_openmpi(item.dialect):
            launchers.append(item)
    return tuple(launchers)


def mpirun_of(facts: HostFacts) -> Launcher | None:
    """The installed mpirun of a known MPI, or None."""
    for item in mpi_launchers(facts):
        if item.name == "mpirun":
            return item
    return None


def oneccl_absent(facts: HostFacts) -> bool:
    """Whether the packages are known and do not include the oneCCL bindings."""
    has_bindings = facts.package("oneccl_bind_pt") or facts.package("torch_ccl")
    return bool(facts.packages) and not has_bindings
