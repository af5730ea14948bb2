"""Which package of a Linux distribution brings a library that can be preloaded."""

from __future__ import annotations

from cputune.facts import LinuxDistribution

DEBIAN = {"tcmalloc": "libtcmalloc-minimal4", "jemalloc": "libjemalloc2", "libgomp": "libgomp1"}
"""Package names of Debian and Ubuntu (https://packages.debian.org/bookworm/NAME).

From Debian 13 and Ubuntu 24.04 on they end in t64, and the old name is provided still
(https://wiki.debian.org/ReleaseGoals/64bit-time).
"""

_APT = f"apt-get install -y {DEBIAN['tcmalloc']}"
_DNF = "dnf install -y gperftools-libs"
"""Fedora's own; on RHEL and its kin from EPEL (https://packages.fedoraproject.org/pkgs/gperftools)."""
_ZYPPER = "zypper --non-interactive install libtcmalloc4"
_INSTALL = {
    "debian": _APT,
    "ubuntu": _APT,
    "fedora": _DNF,
    "rhel": _DNF,
    "centos": _DNF,
    "amzn": _DNF,
    "suse": _ZYPPER,
    "opensuse": _ZYPPER,
    "arch": "pacman -S --noconfirm gperftools",
    "alpine": "apk add gperftools",
}


def install_tcmalloc(system: LinuxDistribution | None) -> str | None:
    """The command, without questions; None for a distribution that is not known.

    A derivative is told by what it says it is like (ID_LIKE in os-release(5)).
    """
    names = () if system is None else (system.id, *system.like)
    return next((_INSTALL[name] for name in names if name in _INSTALL), None)
