"""Which versions exist, fit each other, accept, refuse and ignore what; as data with sources.

Nobody else compares versions. ``stack.toml`` holds the data, ``tables`` reads it, ``fit``
says what goes together, ``ways`` which change makes a stack fit, ``uses`` who calls IPEX and
oneCCL, how flags are written and what becomes of each word.
"""

from cputune.stack.tables import Stack, Versions, load, versions_of
from cputune.stack.uses import (
    LEAST_CCL_WORKERS,
    IpexUse,
    backend_flags,
    ccl_use,
    cpu_flag,
    default_optimizer,
    ipex_off,
    ipex_use,
    oneccl_module,
    optimizers,
    takes,
    why_no_bf16,
    why_no_masks,
    why_too_few_ccl_workers,
)
