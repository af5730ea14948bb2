"""Tables of package versions: which exist, fit each other, and accept, reject or ignore what.

``stack.toml`` has the data with sources, ``tables`` reads it, ``fit`` checks whether versions fit,
``version_changes`` finds the change that makes them fit, and ``uses`` answers who calls IPEX and
oneCCL, and how flags are spelled.
"""

from cputune.stack.tables import Stack, Versions, load, versions_of
from cputune.stack.uses import (
    LEAST_CCL_WORKERS,
    IpexUse,
    backend_flags,
    ccl_use,
    cpu_flag,
    default_optimizer,
    has_argument,
    ipex_off,
    ipex_use,
    oneccl_module,
    optimizers,
    takes,
    why_no_bf16,
    why_no_masks,
    why_too_few_ccl_workers,
)
