"""A private Slurm over the hosts of a cluster: slurmctld on the first, a slurmd on each."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import subprocess
from collections.abc import Iterator

from consumers.slurm import COMMON
from nodes import install
from nodes.cluster import Cluster
from nodes.namespaces import until

CONFIGURATION = """\
SlurmctldHost={first}({address})
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
NODE = "NodeName={name} NodeAddr={address} CPUs={cpus} Sockets=1 CoresPerSocket={cpus}\n"


@contextlib.contextmanager
def slurm(hosts: Cluster) -> Iterator[None]:
    """Start the daemons; on the hosts ``sbatch`` and ``srun`` then find them (``SLURM_CONF``)."""
    root = hosts.folder / "slurm"
    (root / "state").mkdir(parents=True)
    first = hosts.names[0]
    text = COMMON + CONFIGURATION.format(
        first=first, address=hosts.addresses[first], user=getpass.getuser(), root=root
    )
    for name, address in hosts.addresses.items():
        (root / f"spool-{name}").mkdir()
        text += NODE.format(name=name, address=address, cpus=len(os.sched_getaffinity(0)))
    configuration = root / "slurm.conf"
    configuration.write_text(text)
    (root / "cgroup.conf").write_text("")  # the defaults; without the file it looks in /etc
    for host in hosts.hosts.values():
        host.environment["SLURM_CONF"] = str(configuration)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    daemons = [(first, ["slurmctld", "-D", "-c"])]
    daemons += [(name, ["slurmd", "-D", "-N", name]) for name in hosts.names]
    started: list[subprocess.Popen[str]] = []
    try:
        for name, (program, *options) in daemons:
            found = install.find(program)
            assert found is not None, install.why_no_slurm()
            started.append(hosts.start(name, [found, *options], **quiet))
        try:
            until(lambda: states(hosts) == {"idle"})
        except AssertionError as error:
            logs = "\n".join(path.read_text()[-2000:] for path in sorted(root.glob("*.log")))
            raise AssertionError(f"the nodes are {states(hosts)}, not idle:\n{logs}") from error
        yield
    finally:
        for daemon in reversed(started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGTERM)
        for daemon in started:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()
        for host in hosts.hosts.values():
            del host.environment["SLURM_CONF"]


def states(hosts: Cluster) -> set[str]:
    """What Slurm says of its nodes."""
    asked = hosts.run(hosts.names[0], ["sinfo", "--noheader", "--format=%T"], check=False)
    return set(asked.stdout.split())
