"""Which versions exist, fit each other, accept, refuse and ignore what; as data with sources.

Nobody else compares versions. ``stack.toml`` holds the data, ``tables`` reads it, ``fit``
says what goes together, ``uses`` who calls IPEX and oneCCL, ``spelling`` how flags are
written, ``vocabulary`` what becomes of each word, ``ways`` which change makes a stack fit.
"""

from cputune.stack.spelling import (
    backend_flags,
    cpu_flag,
    default_optimizer,
    optimizers,
    takes,
    why_no_bf16,
    why_no_bf16_products,
    why_no_compile,
    why_no_masks,
)
from cputune.stack.tables import Stack, load
from cputune.stack.uses import (
    LEAST_CCL_WORKERS,
    IpexUse,
    ccl_use,
    ipex_off,
    ipex_use,
    oneccl_module,
    why_too_few_ccl_workers,
)
from cputune.stack.versions import Versions, versions_of

__all__ = [
    "LEAST_CCL_WORKERS",
    "IpexUse",
    "Stack",
    "Versions",
    "backend_flags",
    "ccl_use",
    "cpu_flag",
    "default_optimizer",
    "ipex_off",
    "ipex_use",
    "load",
    "oneccl_module",
    "optimizers",
    "takes",
    "versions_of",
    "why_no_bf16",
    "why_no_bf16_products",
    "why_no_compile",
    "why_no_masks",
    "why_too_few_ccl_workers",
]
