"""The packages of Linux distributions that contain libraries to preload."""

from __future__ import annotations

from cputune.host.facts import LinuxDistribution

# Package names of Debian and Ubuntu (https://packages.debian.org/bookworm/NAME).
#
# From Debian 13 and Ubuntu 24.04 on they end in t64, and still provide the old name
# (https://wiki.debian.org/ReleaseGoals/64bit-time).
DEBIAN = {"tcmalloc": "libtcmalloc-minimal4", "jemalloc": "libjemalloc2", "libgomp": "libgomp1"}

_INSTALLS = {
    f"apt-get install -y {DEBIAN['tcmalloc']}": ("debian", "ubuntu"),
    # Fedora has it; RHEL and its derivatives have it in EPEL
    # (https://packages.fedoraproject.org/pkgs/gperftools)
    "dnf install -y gperftools-libs": ("fedora", "rhel", "centos", "amzn"),
    "zypper --non-interactive install libtcmalloc4": ("suse", "opensuse"),
    "pacman -S --noconfirm gperftools": ("arch",),
    "apk add gperftools": ("alpine",),
}


def install_tcmalloc(system: LinuxDistribution | None) -> str | None:
    """None for an unknown distribution. Derivatives are recognized by ID_LIKE of os-release(5)."""
    if system is None:
        return None
    for name in (system.id, *system.like):
        for command, ids in _INSTALLS.items():
            if name in ids:
                return command
    return None
