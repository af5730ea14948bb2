"""Reading environment variables as their programs do; shared by the checks."""

from __future__ import annotations

import re

from cputune.facts import HostFacts

INTEL_OPENMP = r"libiomp5|libomp\.so"
_TRUE = ("1", "true", "yes", "y", "on", "t", "enable")


def value(facts: HostFacts, name: str) -> str | None:
    """A variable without white space around it; None where it is unset or empty."""
    return facts.environment.get(name, "").strip() or None


def is_true(facts: HostFacts, name: str) -> bool:
    """Whether a variable says yes, in the spellings that Hugging Face and Intel take."""
    return (value(facts, name) or "").lower() in _TRUE


def number(facts: HostFacts, *names: str) -> int | None:
    """The first of these variables that holds a whole number, as OpenMP reads it.

    OMP_NUM_THREADS may hold a list for nested regions (``8,2``); the first counts.
    """
    for name in names:
        text = (value(facts, name) or "").split(",")[0].strip()
        if re.fullmatch(r"[0-9]{1,9}", text):
            return int(text)
    return None


def local_ranks(facts: HostFacts) -> int | None:
    """Ranks on this machine, as the launcher around us says; None outside a launcher."""
    return number(
        facts,
        "LOCAL_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "MPI_LOCALNRANKS",
        "PET_NPROC_PER_NODE",
    )


def world_size(facts: HostFacts) -> int | None:
    """Ranks of the job, as the launcher around us says; None outside a launcher."""
    return number(facts, "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


def preloaded(facts: HostFacts) -> list[str]:
    """The entries of LD_PRELOAD; blanks and colons separate them."""
    return [path for path in re.split(r"[:\s]+", facts.environment.get("LD_PRELOAD", "")) if path]


def loads_intel_openmp(facts: HostFacts) -> bool:
    """Whether torch runs on libiomp5: by LD_PRELOAD, or as conda's torch (pip's has libgomp)."""
    torch = facts.package("torch")
    by_conda = torch is not None and torch.installer == "conda"
    return by_conda or any(re.search(INTEL_OPENMP, path) for path in preloaded(facts))


def lacks_torch(facts: HostFacts) -> bool:
    """Whether torch is known not to be installed; a recording may have left packages out."""
    known = bool(facts.packages) or (not facts.recorded and facts.python is not None)
    return known and facts.package("torch") is None


def without_gpu(facts: HostFacts) -> bool:
    """Whether training can only run on the CPU: no GPU driver, or torch's CPU build."""
    torch = facts.package("torch")
    cpu_build = torch is not None and (torch.build == "cpu" or "+cpu" in (torch.version or ""))
    return cpu_build or facts.accelerators == ()


def under_mpi(facts: HostFacts) -> bool:
    """Whether an MPI launcher started this process."""
    return any(value(facts, name) for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"))


def under_torchrun(facts: HostFacts) -> bool:
    """Whether torchrun started this process, or the variables tell it what to start."""
    return any(
        name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT") or name.startswith("PET_")
        for name in facts.environment
    )


def job_nodes(facts: HostFacts) -> int:
    """Machines of the job, as the launcher around us says; 1 where nothing says more."""
    nodes = number(facts, "PET_NNODES", "GROUP_WORLD_SIZE", "SLURM_NNODES")
    if nodes is not None:
        return nodes
    ranks, local = world_size(facts), local_ranks(facts)
    return -(-ranks // local) if ranks and local else 1
