"""Reads kernel settings that change training speed, the container, GPUs and capabilities."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cputune.host.facts import Frequency, LinuxDistribution, Settings
from cputune.host.probing._look import CPU_DIR, Look, cpus_of, whole_number

_CONTAINERS = (
    # name in the cgroup, or in the overlay of the root
    (r"kubepods", "kubernetes"),
    (r"libpod", "podman"),
    (r"\bdocker[-/]", "docker"),
    (r"\bcrio-", "cri-o"),
    (r"containerd[-/]", "containerd"),
    (r"/lxc[./]", "lxc"),
)


OS_RELEASE = ("/etc/os-release", "/usr/lib/os-release")
# The lines that are read and recorded. Others may name the maker of the image.
OS_RELEASE_LINE = re.compile(r"""(?m)^(ID|ID_LIKE|VERSION_ID)=(["']?)([\w.:+ -]*)\2$""")

# The bit of the sysctl that moves pages to the CPUs that use them. Bit 2 moves them between fast
# and slow memory (Documentation/admin-guide/sysctl/kernel.rst).
NUMA_BALANCING_NORMAL = 1


HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


def read_settings(look: Look, online: tuple[int, ...]) -> Settings:
    """Read the kernel settings. Each is None if the kernel does not show it."""
    frequencies = _frequencies(look, online)
    governor = ",".join(sorted({group.governor for group in frequencies})) or None
    container = _container(look)
    if container is None:
        look.not_known("settings.container", "no trace of one in cgroup, mounts and environment")
    numa_balancing = None
    balancing = look.parsed(
        "settings.numa_balancing", "/proc/sys/kernel/numa_balancing", whole_number
    )
    if balancing is not None:
        numa_balancing = bool(balancing & NUMA_BALANCING_NORMAL)
    return Settings(
        governor=look.known(
            "settings.governor", governor, f"{CPU_DIR}/cpu0/cpufreq/scaling_governor"
        ),
        turbo=look.known("settings.turbo", _turbo(look), f"{CPU_DIR}/intel_pstate/no_turbo"),
        transparent_huge_pages=look.parsed("settings.transparent_huge_pages", HUGE_PAGES, _chosen),
        numa_balancing=numa_balancing,
        smt=look.parsed("settings.smt", f"{CPU_DIR}/smt/control", _or_none),
        kernel=look.parsed("settings.kernel", "/proc/sys/kernel/osrelease", _or_none),
        container=container,
        frequencies=frequencies,
        distribution=look.known("settings.distribution", _distribution(look), OS_RELEASE[0]),
    )


def _or_none(text: str) -> str | None:
    return text or None


def _frequencies(look: Look, online: tuple[int, ...]) -> tuple[Frequency, ...]:
    """Groups of online CPUs with the same frequency settings. CPUs without cpufreq are in no
    group.
    """
    alike: dict[tuple[str, str | None, str | None], set[int]] = {}
    for directory, cpus in _policies(look, online):
        governor = look.text(f"{directory}/scaling_governor")
        if governor:
            driver = look.text(f"{directory}/scaling_driver") or None
            preference = look.text(f"{directory}/energy_performance_preference") or None
            alike.setdefault((governor, driver, preference), set()).update(cpus)
    groups = []
    for (governor, driver, preference), members in alike.items():
        if members:
            group = Frequency(
                cpus=tuple(sorted(members)),
                governor=governor,
                driver=driver,
                energy_preference=preference,
            )
            groups.append(group)
    return tuple(groups)


def _policies(look: Look, online: tuple[int, ...]) -> Iterator[tuple[str, frozenset[int]]]:
    base = f"{CPU_DIR}/cpufreq"
    for number in look.numbered(base, "policy"):
        listed = look.text(f"{base}/policy{number}/affected_cpus")
        cpus: frozenset[int] | None = frozenset({number})
        if listed is not None:
            cpus = cpus_of(listed.replace(" ", ","))
        yield f"{base}/policy{number}", (cpus or frozenset()) & frozenset(online)


def _turbo(look: Look) -> bool | None:
    """Whether cores may exceed their base frequency (intel_pstate, or cpufreq's boost)."""
    no_turbo = look.number(f"{CPU_DIR}/intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == 0
    boost = look.number(f"{CPU_DIR}/cpufreq/boost")
    if boost is None:
        return None
    return boost == 1


def _chosen(text: str) -> str | None:
    match = re.search(r"\[(\w+)\]", text)
    if match is None:
        return None
    return match[1]


def _distribution(look: Look) -> LinuxDistribution | None:
    text = next(filter(None, map(look.text, OS_RELEASE)), "")
    values = {name: plain.lower() for name, _, plain in OS_RELEASE_LINE.findall(text)}
    if not values.get("ID"):
        return None
    return LinuxDistribution(
        id=values["ID"],
        like=tuple(values.get("ID_LIKE", "").split()),
        version=values.get("VERSION_ID") or None,
    )


def _container(look: Look) -> str | None:
    """The software of the container that we are in. None if there is no sign of one."""
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
    if environment.get("container"):
        return environment["container"]
    return look.text("/run/systemd/container") or None


# Bits of the capability masks (include/uapi/linux/capability.h).
CAP_SYS_NICE, CAP_SYS_RESOURCE = 23, 24

_DRIVERS = (
    # a loaded driver makes a GPU usable; a card without one does not count
    ("nvidia", "/proc/driver/nvidia"),
    ("nvidia", "/dev/nvidiactl"),
    ("amd", "/dev/kfd"),
    ("directx", "/dev/dxg"),
)
STATUS = "/proc/self/status"


def read_accelerators(look: Look) -> tuple[str, ...] | None:
    """The GPU drivers that are loaded. None if a recording does not have the answer."""
    drivers = tuple(dict.fromkeys(name for name, path in _DRIVERS if look.exists(path)))
    if not drivers and not all(look.host.knows(path) for _, path in _DRIVERS):
        look.not_known("accelerators", "the recording does not contain the device files")
        return None
    return drivers


def read_capability(look: Look, fact: str, bit: int) -> bool | None:
    """Whether the process has an effective capability."""
    mask = re.search(r"^CapEff:\s*([0-9a-f]+)$", look.text(STATUS) or "", re.M)
    number = None
    if mask:
        number = whole_number(mask[1], base=16)
    if number is None:
        return look.known(fact, None, STATUS)
    return bool(number >> bit & 1)
