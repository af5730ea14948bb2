"""Reading environment variables as their programs do; shared by the checks."""

from __future__ import annotations

from cputune.facts import HostFacts

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
        if text.isascii() and text.isdigit():
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


def under_mpi(facts: HostFacts) -> bool:
    """Whether an MPI launcher started this process."""
    return any(value(facts, name) for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"))


def under_torchrun(facts: HostFacts) -> bool:
    """Whether torchrun started this process, or the variables tell it what to start."""
    return any(
        name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT") or name.startswith("PET_")
        for name in facts.environment
    )
