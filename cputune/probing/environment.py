"""The environment variables that concern training, by name; no other variable is kept.

A prefix says nothing of what a variable holds: SLURM_JWT is a key to the cluster, and
FI_PASSPHRASE, CCL_AUTH or TORCH_PWD may be anything. So a name that is not listed is not
read, and a value that looks like a secret is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from cputune.hidden import HIDDEN, KNOWN_VARIABLES, looks_random, looks_secret
from cputune.probing.scrub import Scrubber


def read_environment(variables: Mapping[str, str], scrub: Scrubber | None = None) -> dict[str, str]:
    """The variables that concern training, sorted; names of hosts and people replaced."""
    kept = {name: variables[name] for name in sorted(KNOWN_VARIABLES & set(variables))}
    scrub = Scrubber() if scrub is None else scrub
    shown = scrub.variables(kept)
    for name, value in kept.items():
        if looks_secret(value) or looks_random(value):
            shown[name] = HIDDEN
    return shown
