"""The variables that are removed before a plan is set: each would beat it wherever it is set.

One list for trials, for emitted scripts, and for whoever starts a plan in another way. The
pods of Kubernetes need none of it: their environment is that of the image, and the numbers
of the ranks in it are the operator's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """Variables that are removed together. A name that ends in ``*`` stands for a prefix."""

    names: tuple[str, ...]
    why: str


CLEARED = (
    Cleared(
        names=(
            "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
            "MASTER_ADDR", "MASTER_PORT",
        ),
        why="the numbers of another launch; torch believes them before those of MPI",
    ),
    Cleared(
        names=(
            "PMI_*", "PMIX_*", "OMPI_COMM_*", "MPI_LOCAL*", "HYDI_*", "MV2_COMM_*",
            "SLURM_PROCID", "SLURM_LOCALID",
        ),
        why="the numbers that an MPI or Slurm gave to this very process",
    ),
    Cleared(
        names=("ACCELERATE_*", "PET_*", "TORCHELASTIC_*", "FORK_LAUNCHED"),
        why="options of accelerate and torchrun",
    ),
    Cleared(
        names=(
            "OMP_*", "GOMP_*", "KMP_*", "MKL_NUM_THREADS", "MKL_DYNAMIC",
            "MKL_DOMAIN_NUM_THREADS", "OPENBLAS_*",
        ),
        why="threads and their places",
    ),
    Cleared(names=("CCL_*", "I_MPI_PIN*"), why="workers of oneCCL, pinning of Intel MPI"),
    Cleared(
        names=("LD_PRELOAD", "MALLOC_*", "GLIBC_TUNABLES", "TCMALLOC_*"),
        why="another malloc or OpenMP",
    ),
)  # fmt: skip
"""In the order in which emitted scripts show them."""


def is_cleared(name: str) -> bool:
    """Whether a variable of this name is removed."""
    return any(
        name.startswith(entry[:-1]) if entry.endswith("*") else name == entry
        for group in CLEARED
        for entry in group.names
    )
