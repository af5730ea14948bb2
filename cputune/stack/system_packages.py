"""Which package of a Linux distribution brings a library that can be preloaded."""

from __future__ import annotations

from cputune.host.facts import LinuxDistribution

DEBIAN = {"tcmalloc": "libtcmalloc-minimal4", "jemalloc": "libjemalloc2", "libgomp": "libgomp1"}
"""Package names of Debian and Ubuntu (https://packages.debian.org/bookworm/NAME).

From Debian 13 and Ubuntu 24.04 on they end in t64, and the old name is provided still
(https://wiki.debian.org/ReleaseGoals/64bit-time).
"""

_INSTALLS = {
    f"apt-get install -y {DEBIAN['tcmalloc']}": ("debian", "ubuntu"),
    # Fedora's own; on RHEL and its kin from EPEL
    # (https://packages.fedoraproject.org/pkgs/gperftools)
    "dnf install -y gperftools-libs": ("fedora", "rhel", "centos", "amzn"),
    "zypper --non-interactive install libtcmalloc4": ("suse", "opensuse"),
    "pacman -S --noconfirm gperftools": ("arch",),
    "apk add gperftools": ("alpine",),
}
"""What installs tcmalloc, and on which distributions."""


def install_tcmalloc(system: LinuxDistribution | None) -> str | None:
    """The command, without questions; None for a distribution that is not known.

    A derivative is told by what it says it is like (ID_LIKE in os-release(5)).
    """
    names = () if system is None else (system.id, *system.like)
    found = (command for name in names for command, ids in _INSTALLS.items() if name in ids)
    return next(found, None)
