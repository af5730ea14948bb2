"""What hosts of namespaces need of Debian, and what stands against them on a machine.

    python tests/nodes/install.py          # as root: apt-get install what is missing

No service runs afterwards: the daemons of the tests are started by the tests alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "iptables": "iptables",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "hostname": "hostname",
}
SLURM = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
}
PLUGINS = "slurm-wlm-basic-plugins"
DAEMON_POLICY = Path("/usr/sbin/policy-rc.d")


def find(program: str) -> str | None:
    """Where a program lies; root's own directories may be missing on PATH."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def why_not() -> str | None:
    """What stands against hosts of namespaces here; None where they can be made."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "namespaces want root on Linux"
    missing = sorted({package for tool, package in TOOLS.items() if find(tool) is None})
    if missing:
        return f"apt-get install {' '.join(missing)} (make test-nodes)"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "true"],
        capture_output=True,
        text=True,
    )
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else None


def why_no_slurm() -> str | None:
    """What is missing for a cluster of Slurm beside."""
    missing = [package for tool, package in SLURM.items() if find(tool) is None]
    return f"apt-get install {' '.join([*missing, PLUGINS])} (make test-nodes)" if missing else None


def install() -> str | None:
    """Install what is missing; the reason where that cannot be."""
    tools = {**TOOLS, **SLURM}
    missing = {package for tool, package in tools.items() if find(tool) is None}
    if "slurmd" in missing:
        missing.add(PLUGINS)
    if not missing:
        return None
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"not installed, and only root with apt-get can: {' '.join(sorted(missing))}"
    ours = not DAEMON_POLICY.exists()
    if ours:
        DAEMON_POLICY.write_text("#!/bin/sh\nexit 101\n")  # a package starts no service
        DAEMON_POLICY.chmod(0o755)
    try:
        apt = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
            subprocess.run(["apt-get", "--quiet=2", *words], env=apt, check=True)
    finally:
        if ours:
            DAEMON_POLICY.unlink()
    return None


if __name__ == "__main__":
    reason = install() or why_not() or why_no_slurm()
    print(reason or "hosts of namespaces can be made here")
