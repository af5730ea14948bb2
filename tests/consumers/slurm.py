"""A private Slurm cluster of one node on loopback, for as long as a test needs it.

The daemons are Debian's ``slurmctld`` and ``slurmd`` with ``slurm-client`` and
``slurm-wlm-basic-plugins``. Without munge (``auth/none``), without a database, with every
file below one temporary directory, on ports of its own. slurmd wants root.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol")
PACKAGES = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins"

COMMON = """\
ClusterName=cputune
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
KillWait=2
"""
"""What private clusters have in common: no munge, no database, no control groups."""

CONFIGURATION = """\
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def missing() -> list[str]:
    """Programs that a private cluster needs and that are not installed."""
    return [program for program in PROGRAMS if _find(program) is None]


@contextlib.contextmanager
def cluster(root: Path, *, cpus: int) -> Iterator[Path]:
    """Start the daemons; yields the configuration (``SLURM_CONF``), and ends them after."""
    for name in ("state", "spool"):
        (root / name).mkdir(parents=True)
    configuration = root / "slurm.conf"
    configuration.write_text(
        COMMON
        + CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            user=getpass.getuser(),
            root=root,
            cpus=cpus,
            ctld_port=_free_port(),
            slurmd_port=_free_port(),
        )
    )
    (root / "cgroup.conf").write_text("")  # the defaults; without the file it looks in /etc
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for argv in (["slurmctld", "-D", "-c"], ["slurmd", "-D"]):
            program = _find(argv[0])
            assert program is not None
            daemons.append(
                subprocess.Popen(
                    [program, *argv[1:], "-f", str(configuration)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        _wait_until_idle(environment, root)
        yield configuration
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(timeout=30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _wait_until_idle(environment: dict[str, str], root: Path) -> None:
    deadline = time.monotonic() + 120
    state = ""
    while time.monotonic() < deadline:
        state = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
        if state == "idle":
            return
        time.sleep(0.2)
    logs = "\n".join(path.read_text()[-2000:] for path in sorted(root.glob("*.log")))
    raise AssertionError(f"the private Slurm is {state!r}, not idle:\n{logs}")


def _find(program: str) -> str | None:
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    assert isinstance(port, int)
    return port
