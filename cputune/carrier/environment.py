"""The variables that ranks are started with: the plan's, and nothing that would override it."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping

from cputune.plan import Plan

_OVERRIDING = re.compile(
    r"""(
    RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|MASTER_ADDR|MASTER_PORT
    |PMI_.*|PMIX_.*|OMPI_.*|MPI_LOCAL.*|HYDI_.*|MV2_COMM_.*|SLURM_PROCID|SLURM_LOCALID
    |ACCELERATE_.*|PET_.*|TORCHELASTIC_.*|FORK_LAUNCHED
    |OMP_.*|GOMP_.*|KMP_.*|MKL_NUM_THREADS|MKL_DYNAMIC|MKL_DOMAIN_NUM_THREADS|OPENBLAS_NUM_THREADS
    |CCL_.*|I_MPI_PIN.*
    |MALLOC_CONF|TCMALLOC_.*|CPUTUNE_TRIAL_.*
    )""",
    re.VERBOSE,
)
"""What beats a plan wherever it is set: rank numbers (a RANK in the environment beats what
MPI says), accelerate's own configuration, threads and binding of the OpenMP runtimes."""

_REPLACED_PRELOADS = re.compile(r"lib(tcmalloc|jemalloc|mimalloc|iomp5|omp|gomp)[^/]*\.so")

LOADED_ONCE = ("LD_PRELOAD", "MALLOC_CONF", "KMP_BLOCKTIME")
"""Variables of a plan that are read when a library is loaded: a forked rank has them from
the process that it is forked of, and cannot change them."""

HUB = "https://huggingface.co"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def base_environment(outer: Mapping[str, str], plan: Plan, *, offline: bool) -> dict[str, str]:
    """What is common to all ranks of all plans that load the same libraries.

    As found, the outer environment stays as it is. With ``offline`` the hub's clients
    look only into their caches, at once, where they would try for minutes.
    """
    if plan.as_found:
        variables = dict(outer)
    else:
        variables = {k: v for k, v in outer.items() if not _OVERRIDING.fullmatch(k)}
        kept = [p for p in re.split(r"[:\s]+", variables.pop("LD_PRELOAD", "")) if p]
        preload = [*plan.preload, *(p for p in kept if not _REPLACED_PRELOADS.search(p))]
        planned = plan.environment()
        variables.update({name: planned[name] for name in LOADED_ONCE if name in planned})
        if preload:
            variables["LD_PRELOAD"] = ":".join(preload)
    if offline:
        for name, value in OFFLINE.items():
            variables.setdefault(name, value)
    return variables


def rank_environment(base: Mapping[str, str], plan: Plan, rank: int, port: int) -> dict[str, str]:
    """The variables of one rank. A job of one rank has no rank numbers, as without us."""
    variables = dict(base)
    for name, value in plan.environment().items():
        if name != "LD_PRELOAD":
            variables[name] = value
    if plan.world_size > 1 and not plan.as_found:
        variables.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(plan.world_size),
            LOCAL_WORLD_SIZE=str(plan.processes_per_node),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
    return variables


def hub_reachable(environment: Mapping[str, str], timeout_seconds: float = 3.0) -> bool:
    """Whether the model hub answers; one request, so that trials need not find out each."""
    if any(environment.get(name, "").lower() in ("1", "true", "yes", "on") for name in OFFLINE):
        return False
    address = environment.get("HF_ENDPOINT") or HUB
    request = urllib.request.Request(address, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:
            return bool(answer.status < 500)
    except (OSError, ValueError):  # a proxy's refusal (HTTPError) is an OSError too
        return False
