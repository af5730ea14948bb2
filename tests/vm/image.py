"""Build the disk of the guest that `make test-vm` boots: Debian, MPICH, torch. Needs root, once.

    python tests/vm/image.py

The disk lies in the user's cache and is named by what it is made of, so that it is built
again only when a line below, a requirement of cputune or the pin of torch changes. cputune
itself is not on it: the tests bring it along on a second disk.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).parents[2]
SUITE, PYTHON = "bookworm", "3.11"
DEBIAN = (
    "bash,coreutils,hwloc-nox,iproute2,kmod,linux-image-cloud-amd64,mount,mpich,procps,python3,"
    "util-linux"
)
PACKAGES = ("torch", "transformers", "accelerate")
"""Beside what cputune itself requires."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "debootstrap": "debootstrap"}
INIT = """#!/bin/bash
mkdir -p /disk /project
mount -o ro /dev/vdb /disk && mount -t tmpfs project /project && cp -r /disk/. /project
exec /bin/bash /project/tests/vm/init.sh
"""
FREE_MIB = 600
"""Room on the disk beside what is installed."""


def directory() -> Path:
    """Where the disk of this recipe lies, built or not."""
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    names = {Requirement(word).name for word in (*PACKAGES, *required())}
    pins = [line for line in lines if line.partition("==")[0] in names]
    recipe = repr((SUITE, PYTHON, DEBIAN, PACKAGES, required(), INIT, FREE_MIB, pins))
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    base = os.environ.get("CPUTUNE_VM") or Path(cache).expanduser() / "cputune" / "vm"
    return Path(base) / hashlib.sha256(recipe.encode()).hexdigest()[:12]


def required() -> list[str]:
    """What cputune requires, with what its search does; without other extras."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    search = project["optional-dependencies"]["search"]
    return [*project["dependencies"], *(name for name in search if "[" not in name)]


def why_not() -> str | None:
    """What stands against a guest on this machine; None where the disk is there and qemu too."""
    if shutil.which("qemu-system-x86_64") is None:
        return "qemu-system-x86_64 is not installed"
    if not directory().is_dir():
        return "the guest's disk is not built; `make test-vm` does it, as root"
    return None


def build() -> str | None:
    """Build the disk where it is not there yet; the reason where that cannot be."""
    if directory().is_dir():
        return None
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return "the guest's disk is built on x86-64 Linux alone"
    if os.geteuid() != 0:
        return "the guest's disk is built as root (debootstrap); run `make test-vm` once as root"
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing and shutil.which("apt-get") is None:
        return f"{' and '.join(missing)} are not installed"
    if missing:
        run("apt-get", "update", "--quiet=2")
        run("apt-get", "install", "--quiet=2", "--yes", "--no-install-recommends", *missing)
    directory().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory().parent, prefix=".building-") as half:
        root, disk = Path(half, "root"), Path(half, "disk")
        disk.mkdir()
        fill(root)
        for name in ("vmlinuz", "initrd.img"):
            (found,) = (root / "boot").glob(f"{name}-*")
            shutil.copy(found, disk / name)
        write_disk(root, disk / "root.ext4", free_mib=FREE_MIB)
        disk.rename(directory())
    return None


def fill(root: Path) -> None:
    """Debian with the packages of today's stack, as its own Python finds them."""
    run("debootstrap", "--variant=minbase", f"--include={DEBIAN}", SUITE, str(root))
    packages = root / f"usr/local/lib/python{PYTHON}/dist-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-warn-script-location"]
    pip += ["--target", str(packages), "--only-binary=:all:", "--python-version", PYTHON]
    pip += [word for name in (*PLATFORMS, "linux_x86_64") for word in ("--platform", name)]
    run(*pip, "--constraint", str(PROJECT / "constraints.txt"), *PACKAGES, *required())
    (packages / "cputune.pth").write_text("/project\n")
    for script in (packages / "bin").iterdir():
        text = script.read_text(errors="replace")
        if text.startswith("#!"):
            target = root / "usr/local/bin" / script.name
            target.write_text("#!/usr/bin/python3\n" + text.partition("\n")[2])
            target.chmod(0o755)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    # To compile torch in the guest would take minutes. Some of its files are templates, no Python.
    compile_all = "python3 -m compileall -q -j0 /usr/local/lib > /dev/null || true"
    run("chroot", str(root), "sh", "-c", compile_all)
    (root / "usr/sbin/guest-init").write_text(INIT)
    (root / "usr/sbin/guest-init").chmod(0o755)
    shutil.rmtree(root / "var/cache/apt")


def write_disk(root: Path, disk: Path, *, free_mib: int) -> None:
    """An ext4 file system with the content of a directory. Needs no root."""
    used = run("du", "--summarize", "--block-size=M", str(root)).split("M")[0]
    run("truncate", "--size", f"{int(used) * 11 // 10 + free_mib}M", str(disk))
    run("mkfs.ext4", "-q", "-d", str(root), str(disk))


def run(*argv: str) -> str:
    """Run a command to its end and return what it wrote; its stderr where it fails."""
    ended = subprocess.run(argv, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"error: {' '.join(argv)} ended with {ended.returncode}\n{ended.stderr[-4000:]}")
    return ended.stdout


if __name__ == "__main__":
    print(build() or directory())
