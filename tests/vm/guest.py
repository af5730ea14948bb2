"""A guest of two sockets, two NUMA nodes, 2 × 2 × 2 CPUs: qemu without KVM, and commands in it.

Topology, binding, cgroups and CPU hotplug are those of a real kernel; the speed is not.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from vm import image

BOOT_SECONDS = 300.0
MACHINE = (
    # Of an AMD CPU, which "max" is without KVM, qemu shows no SMT.
    "-accel tcg,thread=multi -cpu max,vendor=GenuineIntel -smp 8,sockets=2,cores=2,threads=2 "
    "-m 3072 -object memory-backend-ram,id=m0,size=2048M "
    "-object memory-backend-ram,id=m1,size=1024M "
    "-numa node,nodeid=0,cpus=0-3,memdev=m0 -numa node,nodeid=1,cpus=4-7,memdev=m1"
)


@dataclass(frozen=True)
class Ended:
    """How a command in the guest ended."""

    code: int
    stdout: str
    stderr: str


class Guest:
    """Boots on entry, and is gone on exit; nothing of it is kept."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.boot_seconds = 0.0

    def __enter__(self) -> Guest:
        started = time.monotonic()
        disk = self._directory / "project.ext4"
        project = self._directory / "project"
        for name in ("cputune", "recipes", "tests/faults", "tests/vm"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(image.PROJECT / name, project / name, ignore=ignored)
        image.write_disk(project, disk, free_mib=16)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._directory / "port"))
        self._listener.listen()
        self._listener.settimeout(30.0)
        self._log = self._directory / "console.log"
        self._process = subprocess.Popen(self._argv(disk), stdin=subprocess.DEVNULL)
        try:
            self._port, _ = self._listener.accept()
            self._port.settimeout(BOOT_SECONDS)
            self._reader = self._port.makefile("rb")
            self._read()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.boot_seconds = time.monotonic() - started
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for name in ("_reader", "_port", "_listener"):
            if hasattr(self, name):
                getattr(self, name).close()

    def run(self, command: str, *, check: bool = True, timeout_seconds: float = 600.0) -> Ended:
        """Run a line of bash; AssertionError where it fails and ``check`` is asked for."""
        self._port.settimeout(timeout_seconds + 30)
        question = {"command": command, "timeout_seconds": timeout_seconds}
        self._port.sendall(json.dumps(question).encode() + b"\n")
        ended = Ended(**self._read())
        assert ended.code == 0 or not check, f"{command}\n{ended.stdout}\n{ended.stderr}"
        return ended

    def _read(self) -> dict[str, object]:
        line = self._reader.readline()
        assert line, f"the guest is gone:\n{self._log.read_text(errors='replace')[-3000:]}"
        told: dict[str, object] = json.loads(line)
        return told

    def _argv(self, disk: Path) -> list[str]:
        built = image.directory()
        return [
            *("qemu-system-x86_64", "-nodefaults", "-no-reboot", "-display", "none"),
            *MACHINE.split(),
            *("-kernel", str(built / "vmlinuz"), "-initrd", str(built / "initrd.img")),
            *("-append", "root=/dev/vda rw console=ttyS0 quiet panic=-1 init=/usr/sbin/guest-init"),
            *("-drive", f"file={built / 'root.ext4'},format=raw,if=virtio,snapshot=on"),
            *("-drive", f"file={disk},format=raw,if=virtio,readonly=on"),
            *("-serial", f"file:{self._log}"),
            *("-device", "virtio-serial", "-device", "virtserialport,chardev=port,name=port"),
            *("-chardev", f"socket,id=port,path={self._directory / 'port'}"),
        ]
