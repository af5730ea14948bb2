"""The environment variables that change training, and no others: the rest is private."""

from __future__ import annotations

from collections.abc import Mapping

PREFIXES = (
    "ACCELERATE_",
    "ATEN_",
    "CCL_",
    "DNNL_",
    "FI_",
    "GLOO_",
    "GOMP_",
    "I_MPI_",
    "KMP_",
    "LRU_CACHE_",
    "MKL_",
    "MPICH_",
    "NUMEXPR_",
    "OMPI_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PET_",
    "PMI_",
    "PMIX_",
    "PRTE_",
    "SLURM_",
    "TORCH",
    "TF32_",
    "IPEX_",
    "DS_ACCELERATOR",
)
_NAMES = (
    "CONDA_PREFIX CUDA_VISIBLE_DEVICES KUBERNETES_SERVICE_HOST LD_LIBRARY_PATH LD_PRELOAD "
    "LOCAL_RANK LOCAL_WORLD_SIZE MALLOC_CONF MALLOC_ARENA_MAX MASTER_ADDR MASTER_PORT NODE_RANK "
    "GLIBC_TUNABLES GROUP_WORLD_SIZE MPI_LOCALNRANKS RANK VIRTUAL_ENV WORLD_SIZE "
    "TOKENIZERS_PARALLELISM container"
)
_PRIVATE = ("TOKEN", "SECRET", "PASSW", "_KEY", "CREDENTIAL", "USER", "ACCOUNT")


def read_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that concern training, sorted; nothing that may be a secret."""
    names = frozenset(_NAMES.split())
    return {
        name: variables[name]
        for name in sorted(variables)
        if (name in names or name.startswith(PREFIXES))
        and not any(word in name.upper() for word in _PRIVATE)
    }
