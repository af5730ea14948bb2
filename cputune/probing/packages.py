"""Installed Python packages, from their metadata; nothing is imported."""

from __future__ import annotations

import re

from cputune.facts import Package
from cputune.host import Distribution
from cputune.probing._look import Look


def read_packages(look: Look) -> tuple[Package, ...]:
    """Every distribution of the interpreter that trains, sorted by name."""
    found = []
    for distribution in look.host.distributions():
        if distribution.version is None:
            look.not_known(
                f"packages.{distribution.name}.version",
                f"the metadata of {distribution.name} names no version"
                + (f" ({distribution.location})" if distribution.location else ""),
            )
        if distribution.location is None:
            look.not_known(
                f"packages.{distribution.name}.location",
                "conda keeps no place for it"
                if distribution.installer == "conda"
                else "the recording does not name the place",
            )
        found.append(
            Package(
                name=distribution.name,
                version=distribution.version,
                location=distribution.location,
                requires=distribution.requires,
                installer=distribution.installer,
                build=_torch_build(look, distribution),
                others=distribution.others,
            )
        )
    return tuple(found)


def _torch_build(look: Look, distribution: Distribution) -> str | None:
    """``cpu``, ``cuda 13.0``, ``hip 6.4``: what torch was built for, from torch/version.py.

    The version alone does not tell: the CUDA wheels of PyPI carry no local tag.
    """
    if distribution.name != "torch" or distribution.location is None:
        return None
    text = look.text(f"{distribution.location.rstrip('/')}/torch/version.py")
    if text is None:
        return None
    for kind in ("cuda", "hip", "xpu"):
        built = re.search(rf"^{kind}\b[^=\n]*=\s*'([\w.\-]{{1,40}})'", text, re.MULTILINE)
        if built:
            return f"{kind} {built[1]}"
    return "cpu"
