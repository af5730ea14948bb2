"""Kernel knobs that change training speed, the container around us, GPUs and capabilities."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cputune.host.facts import Frequency, LinuxDistribution, Settings
from cputune.host.probing._look import CPU_DIR, Look, cpus_of, whole_number

_CONTAINERS = (
    # what its cgroup, or the overlay of its root, is called
    (r"kubepods", "kubernetes"),
    (r"libpod", "podman"),
    (r"\bdocker[-/]", "docker"),
    (r"\bcrio-", "cri-o"),
    (r"containerd[-/]", "containerd"),
    (r"/lxc[./]", "lxc"),
)


OS_RELEASE = ("/etc/os-release", "/usr/lib/os-release")
OS_RELEASE_LINE = re.compile(r"""(?m)^(ID|ID_LIKE|VERSION_ID)=(["']?)([\w.:+ -]*)\2$""")
"""What is read of them, and recorded; the rest may name who has made the image."""

NUMA_BALANCING_NORMAL = 1
"""The bit of the sysctl that moves pages to the CPUs that use them; bit 2 moves them between
fast and slow memory (Documentation/admin-guide/sysctl/kernel.rst)."""


HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


def read_settings(look: Look, online: tuple[int, ...]) -> Settings:
    """Read the kernel settings; each is None where the kernel does not show it."""
    frequencies = _frequencies(look, online)
    governor = ",".join(sorted({group.governor for group in frequencies})) or None
    container = _container(look)
    if container is None:
        look.not_known("settings.container", "no trace of one in cgroup, mounts and environment")
    balancing = look.parsed(
        "settings.numa_balancing", "/proc/sys/kernel/numa_balancing", whole_number
    )
    return Settings(
        governor=look.known(
            "settings.governor", governor, f"{CPU_DIR}/cpu0/cpufreq/scaling_governor"
        ),
        turbo=look.known("settings.turbo", _turbo(look), f"{CPU_DIR}/intel_pstate/no_turbo"),
        transparent_huge_pages=look.parsed("settings.transparent_huge_pages", HUGE_PAGES, _chosen),
        numa_balancing=None if balancing is None else bool(balancing & NUMA_BALANCING_NORMAL),
        smt=look.parsed("settings.smt", f"{CPU_DIR}/smt/control", _or_none),
        kernel=look.parsed("settings.kernel", "/proc/sys/kernel/osrelease", _or_none),
        container=container,
        frequencies=frequencies,
        distribution=look.known("settings.distribution", _distribution(look), OS_RELEASE[0]),
    )


def _or_none(text: str) -> str | None:
    return text or None


def _frequencies(look: Look, online: tuple[int, ...]) -> tuple[Frequency, ...]:
    """The online CPUs in groups that are treated alike; CPUs without cpufreq are in none."""
    alike: dict[tuple[str, str | None, str | None], set[int]] = {}
    for directory, cpus in _policies(look, online):
        governor = look.text(f"{directory}/scaling_governor")
        if governor:
            driver = look.text(f"{directory}/scaling_driver") or None
            preference = look.text(f"{directory}/energy_performance_preference") or None
            alike.setdefault((governor, driver, preference), set()).update(cpus)
    return tuple(
        Frequency(
            cpus=tuple(sorted(cpus)), governor=governor, driver=driver, energy_preference=preference
        )
        for (governor, driver, preference), cpus in alike.items()
        if cpus
    )


def _policies(look: Look, online: tuple[int, ...]) -> Iterator[tuple[str, frozenset[int]]]:
    """Directories of cpufreq with the online CPUs of each."""
    base = f"{CPU_DIR}/cpufreq"
    for number in look.numbered(base, "policy"):
        listed = look.text(f"{base}/policy{number}/affected_cpus")
        cpus = frozenset({number}) if listed is None else cpus_of(listed.replace(" ", ","))
        yield f"{base}/policy{number}", (cpus or frozenset()) & frozenset(online)


def _turbo(look: Look) -> bool | None:
    """Whether cores may run above their base frequency (intel_pstate, or cpufreq's boost)."""
    no_turbo = look.number(f"{CPU_DIR}/intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == 0
    boost = look.number(f"{CPU_DIR}/cpufreq/boost")
    return None if boost is None else boost == 1


def _chosen(text: str) -> str | None:
    """The bracketed word of ``always [madvise] never``."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else None


def _distribution(look: Look) -> LinuxDistribution | None:
    """What os-release(5) says; None where it says nothing."""
    text = next(filter(None, map(look.text, OS_RELEASE)), "")
    said = {name: plain.lower() for name, _, plain in OS_RELEASE_LINE.findall(text)}
    if not said.get("ID"):
        return None
    return LinuxDistribution(
        id=said["ID"],
        like=tuple(said.get("ID_LIKE", "").split()),
        version=said.get("VERSION_ID") or None,
    )


def _container(look: Look) -> str | None:
    """Which software runs the container that we are in; None where none shows."""
    environment = look.host.environment()
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    mounts = (look.text("/proc/self/mountinfo") or "").splitlines()
    root = next((line for line in mounts if line.split()[4:5] == ["/"]), "")
    traces = (look.text("/proc/self/cgroup") or "") + root
    for pattern, name in _CONTAINERS:
        if re.search(pattern, traces):
            return name
    if look.exists("/.dockerenv"):
        return "docker"
    if look.exists("/run/.containerenv"):
        return "podman"
    return environment.get("container") or look.text("/run/systemd/container") or None


CAP_SYS_NICE, CAP_SYS_RESOURCE = 23, 24
"""Their bits in the capability masks (include/uapi/linux/capability.h)."""

_DRIVERS = (
    # a driver that is loaded makes a GPU usable; a card without one is none
    ("nvidia", "/proc/driver/nvidia"),
    ("nvidia", "/dev/nvidiactl"),
    ("amd", "/dev/kfd"),
    ("directx", "/dev/dxg"),
)
STATUS = "/proc/self/status"


def read_accelerators(look: Look) -> tuple[str, ...] | None:
    """Which GPU drivers are there; None where a recording cannot tell."""
    found = tuple(dict.fromkeys(name for name, path in _DRIVERS if look.exists(path)))
    if not found and not all(look.host.knows(path) for _, path in _DRIVERS):
        look.not_known("accelerators", "the recording does not hold the device files")
        return None
    return found


def read_capability(look: Look, fact: str, bit: int) -> bool | None:
    """Whether the process holds a capability, by its effective ones."""
    mask = re.search(r"^CapEff:\s*([0-9a-f]+)$", look.text(STATUS) or "", re.M)
    number = whole_number(mask[1], base=16) if mask else None
    return look.known(fact, None if number is None else bool(number >> bit & 1), STATUS)
