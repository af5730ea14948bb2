"""Kernel knobs that change training speed, and the kind of container around us."""

from __future__ import annotations

import re

from cputune.facts import Settings
from cputune.probing._look import CPU_DIR, Look

_CONTAINERS = (
    # what its cgroup, or the overlay of its root, is called
    (r"kubepods", "kubernetes"),
    (r"libpod", "podman"),
    (r"\bdocker[-/]", "docker"),
    (r"\bcrio-", "cri-o"),
    (r"containerd[-/]", "containerd"),
    (r"/lxc[./]", "lxc"),
)


def read_settings(look: Look) -> Settings:
    """Read them; each is None where the kernel does not show it."""
    settings = Settings(
        governor=_governor(look),
        turbo=_turbo(look),
        transparent_huge_pages=_chosen(look.text("/sys/kernel/mm/transparent_hugepage/enabled")),
        numa_balancing=_numa_balancing(look),
        smt=look.text(f"{CPU_DIR}/smt/control") or None,
        kernel=_kernel(look),
        container=_container(look),
    )
    for fact, path in (
        ("governor", f"{CPU_DIR}/cpu0/cpufreq/scaling_governor"),
        ("turbo", f"{CPU_DIR}/intel_pstate/no_turbo"),
        ("transparent_huge_pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
        ("numa_balancing", "/proc/sys/kernel/numa_balancing"),
        ("smt", f"{CPU_DIR}/smt/control"),
        ("kernel", "/proc/sys/kernel/osrelease"),
    ):
        if getattr(settings, fact) is None:
            look.not_known(f"settings.{fact}", look.why(path))
    return settings


def _governor(look: Look) -> str | None:
    """The cpufreq governor; all of them, joined by commas, where policies differ."""
    base = f"{CPU_DIR}/cpufreq"
    policies = look.numbered(base, "policy")
    paths = [f"{base}/policy{number}/scaling_governor" for number in policies]
    texts = [look.text(path) for path in paths or (f"{CPU_DIR}/cpu0/cpufreq/scaling_governor",)]
    return ",".join(sorted({text for text in texts if text})) or None


def _turbo(look: Look) -> bool | None:
    """Whether cores may run above their base frequency (intel_pstate, or cpufreq's boost)."""
    no_turbo = look.number(f"{CPU_DIR}/intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == 0
    boost = look.number(f"{CPU_DIR}/cpufreq/boost")
    return None if boost is None else boost == 1


def _chosen(text: str | None) -> str | None:
    """The bracketed word of ``always [madvise] never``."""
    found = re.search(r"\[(\w+)\]", text or "")
    return found[1] if found else None


def _numa_balancing(look: Look) -> bool | None:
    number = look.number("/proc/sys/kernel/numa_balancing")
    return None if number is None else number != 0


def _kernel(look: Look) -> str | None:
    release = look.text("/proc/sys/kernel/osrelease")
    if release:
        return release
    found = re.match(r"Linux version (\S+)", look.text("/proc/version") or "")
    return found[1] if found else None


def _container(look: Look) -> str | None:
    """What runs the container that we are in; None for none that shows."""
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
