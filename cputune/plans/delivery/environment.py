"""The variables that ranks are started with, without any that would override the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cputune.host.hub import OFFLINE
from cputune.plans.plan import Plan
from cputune.stack import Versions, ipex_off

# Variables that are read when a library is loaded: a forked rank has those of its parent and
# cannot change them.
LOADED_ONCE = (
    "LD_PRELOAD",
    "MALLOC_CONF",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
    "KMP_BLOCKTIME",
)


def plan_variables(plan: Plan, versions: Mapping[str, str]) -> dict[str, str]:
    """The variables of every rank of a plan with these versions of the distributions.

    Some releases of accelerate use IPEX if it is installed, unless a variable forbids it.
    """
    variables = plan.environment()
    if not plan.as_found and not plan.ipex:
        variables.update(ipex_off(Versions.from_names(versions)))
    return variables


def base_environment(
    outer: Mapping[str, str], plan: Plan, variables: Mapping[str, str], *, offline: bool
) -> dict[str, str]:
    """What all ranks of all plans that load the same libraries have in common.

    ``variables`` are the plan's. For a plan that runs as typed the outer environment stays. With
    ``offline`` the hub's clients use only their caches, instead of retrying for minutes.
    """
    base = {}
    for name, value in outer.items():
        if plan.as_found or not is_cleared(name):
            base[name] = value
    for name in LOADED_ONCE:
        if name in variables:
            base[name] = variables[name]
    if offline:
        base = {**OFFLINE, **base}
    return base


def rank_numbers(plan: Plan, rank: int, port: int) -> dict[str, str]:
    """The rank variables of a process on this machine; a job of one rank has none.

    ``port``: on which the first rank listens.
    """
    if plan.world_size == 1 or plan.as_found:
        return {}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(plan.processes_per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


class Cleared(NamedTuple):
    """Variables that are removed together. A name that ends in ``*`` is a prefix."""

    why: str
    names: tuple[str, ...]


# Emitted scripts list them in this order.
CLEARED = (
    Cleared(
        "rank numbers of another launch; torch prefers them to those of MPI",
        (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "NODE_RANK",
            "GROUP_RANK",
            "MASTER_ADDR",
            "MASTER_PORT",
        ),
    ),
    Cleared(
        "rank numbers that MPI or Slurm gave to this process",
        (
            "PMI_*",
            "PMIX_*",
            "OMPI_COMM_*",
            "MPI_LOCAL*",
            "HYDI_*",
            "MV2_COMM_*",
            "SLURM_PROCID",
            "SLURM_LOCALID",
        ),
    ),
    Cleared(
        "options of accelerate and torchrun",
        ("ACCELERATE_*", "PET_*", "TORCHELASTIC_*", "FORK_LAUNCHED"),
    ),
    Cleared(
        "threads and their binding",
        (
            "OMP_*",
            "GOMP_*",
            "KMP_*",
            "MKL_NUM_THREADS",
            "MKL_DYNAMIC",
            "MKL_DOMAIN_NUM_THREADS",
            "OPENBLAS_*",
        ),
    ),
    Cleared("workers of oneCCL, pinning of Intel MPI", ("CCL_*", "I_MPI_PIN*")),
    Cleared("another malloc or OpenMP", ("LD_PRELOAD", "MALLOC_*", "GLIBC_TUNABLES", "TCMALLOC_*")),
)


def is_cleared(name: str) -> bool:
    """Whether a variable of this name is removed."""
    for group in CLEARED:
        for entry in group.names:
            if name == entry or (entry.endswith("*") and name.startswith(entry[:-1])):
                return True
    return False
