"""One host on this machine: a network, a name, processes and files in /etc of its own.

The CPUs and the disk are those of the machine. The kernel ends a host with whoever made it: its
first process is ended by the death of its parent, and with it go its processes and its network.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import psutil
from nodes import install

T = TypeVar("T")

NAMESPACES = ("--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
DAEMONS = ("sshd", "slurmctld", "slurmd", "slurmscriptd")
ENDED_WITH_US = ("setpriv", "--pdeathsig", "KILL")
CGROUPS = Path("/sys/fs/cgroup")
CPUSETS = CGROUPS / "cpuset" if (CGROUPS / "cpuset").is_dir() else CGROUPS

# /sys shows the interfaces of those who mounted it; the control groups come along.
BEGIN = """
set -eu
folder=$1 name=$2
hostname "$name"
mkdir "$folder/cgroup"
mount --rbind /sys/fs/cgroup "$folder/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$folder/cgroup" /sys/fs/cgroup
mount -t tmpfs run /run
mkdir /run/sshd
mount -t tmpfs shm /dev/shm
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$folder/hostname" /etc/hostname
mkdir -p /etc/ssh
mount --bind "$folder/ssh" /etc/ssh
ip link set lo up
. "$folder/more.sh"
exec "$3" -D -e -f /etc/ssh/sshd_config 2>"$folder/sshd.log"
"""

SSHD = """\
Port 22
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
MaxStartups 200
MaxSessions 200
SetEnv {environment}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """In what a host differs from its neighbours."""

    cpus: tuple[int, ...] = ()
    """The CPUs that its processes may have (a cpuset); all where none is named."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Distributions of the tests' environment that have another version there."""
    first_in_hosts: str = ""
    """A line before all others in /etc/hosts: ``127.0.1.1 beta``, as Debian writes it."""
    hidden: tuple[Path, ...] = ()
    """Directories that are empty there."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its logins: PATH, mostly."""


class Host:
    """A host, from its first process on; ``end`` leaves nothing of it."""

    def __init__(self, name: str, number: int, folder: Path, hosts: str, odd: Odd) -> None:
        self.name, self.folder = name, folder
        self._cpuset = CPUSETS / f"cputune-nodes-{number}-{name}" if odd.cpus else None
        self._log = folder / "begin.log"
        (folder / "tmp").mkdir()
        self.environment = {"TMPDIR": str(folder / "tmp"), **odd.environment}
        (folder / "hosts").write_text(hosts)
        (folder / "hostname").write_text(f"{name}\n")
        quoted = " ".join(f'"{key}={value}"' for key, value in self.environment.items())
        (folder / "ssh" / "sshd_config").write_text(SSHD.format(environment=quoted))
        (folder / "more.sh").write_text(self._more(odd))
        begin, sshd = ("sh", "-c", BEGIN, "sh"), install.find("sshd") or "sshd"
        self.pid = 0
        with self._log.open("wb") as log:
            self._keeper = subprocess.Popen(
                [*ENDED_WITH_US, "unshare", *NAMESPACES, *begin, str(folder), name, sshd],
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            self.pid = self._first_process()
        except BaseException:
            self.end()
            raise

    def in_network(self, argv: tuple[str, ...]) -> list[str]:
        """The command that runs ``argv`` in its network, with our files and names."""
        return ["nsenter", "--target", str(self.pid), "--net", *argv]

    def entered(self, argv: tuple[str, ...], cwd: str) -> list[str]:
        """The command that runs ``argv`` there, in a directory of the host."""
        which = ["--net", "--mount", "--uts", "--pid", f"--wdns={cwd}"]
        joined = ["nsenter", "--target", str(self.pid), *which, *argv]
        if self._cpuset is None:
            return joined
        enter = 'echo $$ > "$0" && exec "$@"'
        return ["sh", "-c", enter, str(self._cpuset / "cgroup.procs"), *joined]

    def processes(self) -> list[psutil.Process]:
        """What runs there beside the daemons, as we see it from outside."""
        here = _pid_namespace(self.pid)
        return [
            process
            for process in psutil.process_iter(["name", "status"])
            if not (process.info["name"] or "").startswith(DAEMONS)
            and process.info["status"] != psutil.STATUS_ZOMBIE
            and _pid_namespace(process.pid) == here
        ]

    def end(self) -> None:
        """Its processes, its network and its control group go."""
        # Of its first process's end the keeper learns, and ends itself; of the keeper's nobody.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid or self._keeper.pid, signal.SIGKILL)
        self._keeper.wait()
        if self._cpuset is not None:
            remove_cpuset(self._cpuset)

    def _first_process(self) -> int:
        """The pid of sshd as we see it, once every file lies where it shall."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self._keeper.poll() is None:
            for child in psutil.Process(self._keeper.pid).children():
                if child.name() == "sshd":
                    return child.pid
            time.sleep(0.02)
        logs = (self._log, self.folder / "sshd.log")
        told = "\n".join(log.read_text()[-2000:] for log in logs if log.exists())
        raise AssertionError(f"host {self.name} does not begin: {told}")

    def _more(self, odd: Odd) -> str:
        lines = [f"mount -t tmpfs hidden '{path}'" for path in odd.hidden]
        for name, version in odd.versions.items():
            real, planted = _metadata(name), self.folder / f"{name}.METADATA"
            told = [
                f"Version: {version}" if line.startswith("Version: ") else line
                for line in real.read_text(encoding="utf-8").split("\n")
            ]
            planted.write_text("\n".join(told), encoding="utf-8")
            lines.append(f"mount --bind '{planted}' '{real}'")
        if self._cpuset is not None:
            make_cpuset(self._cpuset, odd.cpus)
            lines.append(f"echo $$ > '{self._cpuset}/cgroup.procs'")
        return "\n".join(lines) + "\n"


def make_cpuset(path: Path, cpus: tuple[int, ...]) -> None:
    """A control group of these CPUs, and of all memory."""
    if path.parent == CGROUPS:  # version 2 hands its controllers on only when told
        (CGROUPS / "cgroup.subtree_control").write_text("+cpuset")
    path.mkdir()
    (path / "cpuset.cpus").write_text(",".join(map(str, cpus)))
    if path.parent != CGROUPS:
        (path / "cpuset.mems").write_text((path.parent / "cpuset.mems").read_text())


def remove_cpuset(path: Path) -> None:
    """Remove a control group; those that were in it need a moment to be gone."""
    for _ in range(100):
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)


def call(*argv: str) -> str:
    """Run a command and return what it wrote; AssertionError with its stderr where it fails."""
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done.stdout


def until(found: Callable[[], T | None], seconds: float = 120.0) -> T:
    """What is found, as soon as there is something; AssertionError after ``seconds``.

    A busy machine needs long; nothing waits longer than it has to.
    """
    deadline = time.monotonic() + seconds
    while not (there := found()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)
    return there


def _metadata(name: str) -> Path:
    found = [file for file in metadata.files(name) or () if file.name == "METADATA"]
    assert found, f"{name} is not installed in {sys.prefix}"
    return Path(str(found[0].locate()))


def _pid_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
