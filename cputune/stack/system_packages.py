"""Which package of a Linux distribution brings a library that can be preloaded."""

from __future__ import annotations

from dataclasses import dataclass

from cputune.facts import LinuxDistribution

DEBIAN = {"tcmalloc": "libtcmalloc-minimal4", "jemalloc": "libjemalloc2", "libgomp": "libgomp1"}
"""Package names of Debian and Ubuntu (https://packages.debian.org/bookworm/NAME)."""

_RENAMED = {"debian": 13, "ubuntu": 24}
"""From these releases on libtcmalloc-minimal4 is called so with t64 at its end, for the 64-bit
time_t (https://wiki.debian.org/ReleaseGoals/64bit-time); the old name is provided still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manager:
    """How a family of distributions installs tcmalloc."""

    families: tuple[str, ...]
    install: str
    package: str


_MANAGERS = (
    _Manager(families=("debian", "ubuntu"), install="apt-get install", package=DEBIAN["tcmalloc"]),
    # Fedora's own; on RHEL and its kin from EPEL (https://packages.fedoraproject.org/pkgs/gperftools).
    _Manager(
        families=("fedora", "rhel", "centos", "amzn"),
        install="dnf install",
        package="gperftools-libs",
    ),
    _Manager(families=("suse", "opensuse"), install="zypper install", package="libtcmalloc4"),
    _Manager(families=("arch",), install="pacman -S", package="gperftools"),
    _Manager(families=("alpine",), install="apk add", package="gperftools"),
)


def tcmalloc_package(system: LinuxDistribution | None) -> tuple[str, str] | None:
    """How to install, and the package with tcmalloc; None for a distribution that is not known.

    A derivative is told by what it says it is like (ID_LIKE in os-release(5)).
    """
    for name in () if system is None else (system.id, *system.like):
        for manager in _MANAGERS:
            if name in manager.families:
                return manager.install, manager.package + _ending(system, name)
    return None


def _ending(system: LinuxDistribution | None, family: str) -> str:
    """``t64`` where the release itself, and not one that is like it, is known to have it."""
    if system is None or system.id != family or family not in _RENAMED:
        return ""
    major = (system.version or "").partition(".")[0]
    return "t64" if major.isdigit() and int(major[:6]) >= _RENAMED[family] else ""
