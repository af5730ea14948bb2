"""How a host is reached: by ssh, by srun inside a Slurm allocation, or by an mpirun.

Each is a record that turns a node and a program into the command that starts the program over
there with our standard input and output, and explains why that did not work.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from cputune.errors import CannotError, UsageError
from cputune.host.remote.named import Node

OLDEST_PYTHON = (3, 7)
"""Of other hosts: what is sent there needs no more."""

NO_PYTHON = "there is no python3"

TOO_OLD = "cputune needs Python 3.7 here, and this is"
"""The message of a script that is sent, where the Python there is too old."""

CONNECT_SECONDS = 10
ALIVE_SECONDS, ALIVE_COUNT = 5, 4
"""ssh gives up a connection that was dead for the product of the two; the agent over there does the
same."""

NO_INPUT = "openmpi5"
"""The dialect of mpirun that gives a rank on another host no standard input, and waits for ever
(open-mpi/ompi#11990, openpmix/prrte#2373; 5.0.11 too). So it cannot start the agent there."""

Manner = Literal["ssh", "srun", "mpirun"]
Explained = tuple[str, str | None]
"""Why a host could not be reached, and what to do about it."""


MessagePatterns = Iterable[tuple[str, str, str]]

_SSH_SAYS: MessagePatterns = (
    # pattern in what it writes, why, what to do; {} is the host
    (
        r"Could not resolve hostname|Name or service not known|unknown host",
        "its name is not known here",
        "name {} in /etc/hosts or in DNS",
    ),
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is another one than before",
        "find out why; if it is right: ssh-keygen -R {}",
    ),
    (
        r"Host key verification failed|No \w+ host key is known",
        "its host key is not known here",
        "ssh {} once by hand, and compare the key that it shows",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "it refuses our key",
        "ssh-copy-id {}; nothing here asks for a password",
    ),
    (
        r"Connection refused",
        "no sshd listens there",
        "start sshd on {}, or name its port in ~/.ssh/config",
    ),
    (
        r"No route to host|Network is unreachable",
        "no network leads there",
        "is {} up, and in the same network?",
    ),
    (
        r"[Cc]onnection timed out|Operation timed out|banner exchange",
        "it gave no answer",
        "is {} up, and does a firewall stand between?",
    ),
    (
        r"Timeout, server .* not responding|Broken pipe|[Cc]onnection (reset|closed)|^exit 255$",
        "the connection was cut",
        "is {} up? `journalctl -u ssh` there may say why it closed it",
    ),
    (
        r"Bad configuration option|Bad owner or permissions|Can't open user config",
        "ssh cannot read its settings",
        "ssh {} by hand shows what is wrong",
    ),
)

_SRUN_SAYS: MessagePatterns = (
    (
        r"Invalid node name|not in this job|Requested node configuration is not available",
        "it is not in our allocation",
        "name hosts of the job: scontrol show hostnames",
    ),
    (
        r"Unable to contact slurm controller|Connection refused",
        "slurmctld gives no answer",
        "scontrol ping",
    ),
    (r"Invalid job id|Job/step already completing", "our allocation has ended", "salloc a new one"),
    (r"Node failure|NODE_FAIL|down", "Slurm says that the node is down", "sinfo -R tells why"),
)


class Reach:
    """A way to another host.

    ``name`` is what carries the connection, and ``says`` explains what it writes where it fails.
    """

    __slots__ = ()
    says: ClassVar[MessagePatterns] = _SSH_SAYS
    name: str

    @property
    def variables(self) -> Mapping[str, str]:
        """Variables that the command needs beside our environment."""
        return {}

    def argv(self, node: Node, program: Sequence[str]) -> tuple[str, ...]:
        """The command that starts ``program`` on that node."""
        raise NotImplementedError

    def explain(self, node: Node, code: int | None, said: str) -> Explained:
        """Why it ended with this exit status and this stderr, and what to do."""
        # ssh writes nothing about a server that fell silent.
        message = said.strip() or f"exit {code}"
        for pattern, reason, hint in self.says:
            if re.search(pattern, message):
                return reason, hint.format(node.name)
        return _common(node, code, said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh(Reach):
    """The ssh of OpenSSH; ``words`` may name another file of settings: ``("ssh", "-F", FILE)``.

    It never asks for anything: a password that has to be typed is no way to many hosts.
    """

    words: tuple[str, ...] = ("ssh",)
    name: str = "ssh"

    def argv(self, node: Node, program: Sequence[str]) -> tuple[str, ...]:
        options = (
            "BatchMode=yes",
            f"ConnectTimeout={CONNECT_SECONDS}",
            f"ServerAliveInterval={ALIVE_SECONDS}",
            f"ServerAliveCountMax={ALIVE_COUNT}",
            "LogLevel=ERROR",
        )
        set_ = [word for option in options for word in ("-o", option)]
        # With -n or a terminal the agent would have no standard input of its own.
        there = f"{node.user}@{node.name}" if node.user else node.name
        return (*self.words, "-T", *set_, there, shlex.join(program))


INHERITED = (
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "SLURM_HINT",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_THREADS_PER_CORE",
    "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION",
)
"""Variables of salloc or an outer step that srun would obey again, and so cut a node to one CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Srun(Reach):
    """One step of the Slurm allocation that we are in; it has all CPUs of the job on the node."""

    says: ClassVar[MessagePatterns] = _SRUN_SAYS
    program: str = "srun"
    name: str = "srun"

    def argv(self, node: Node, program: Sequence[str]) -> tuple[str, ...]:
        unset = [word for name in INHERITED for word in ("-u", name)]
        where = ("-w", node.name, "-N1", "-n1", "--overlap", "--cpu-bind=none", "--quiet")
        cpus = () if node.cpus is None else (f"--cpus-per-task={node.cpus}",)
        return ("env", *unset, self.program, *where, *cpus, *program)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mpirun(Reach):
    """One rank on that host, by the mpirun of a dialect, bound to nothing."""

    dialect: str
    program: str = "mpirun"
    name: str = "mpirun"

    @property
    def variables(self) -> Mapping[str, str]:
        if self.dialect.startswith("openmpi"):
            root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            return root if os.geteuid() == 0 else {}
        return {"I_MPI_PIN": "0"} if self.dialect == "intelmpi" else {}

    def argv(self, node: Node, program: Sequence[str]) -> tuple[str, ...]:
        if self.dialect.startswith("openmpi"):
            return (
                self.program,
                "--host",
                f"{node.name}:1",
                "-n",
                "1",
                "--bind-to",
                "none",
                *program,
            )
        unbound = ("-bind-to", "none") if self.dialect == "mpich" else ()
        return (self.program, "-hosts", node.name, "-n", "1", *unbound, *program)


def find_reach(
    manner: Manner | None = None,
    *,
    ssh: str | None = None,
    allocated: bool = False,
    mpi: tuple[str, str] | None = None,
) -> Reach:
    """The way that is asked for, or the one that is there.

    Args:
        manner: ``ssh``, ``srun`` or ``mpirun``; None leaves the choice to what is there.
        ssh: another ssh with its options, as one text (``ssh -F file``).
        allocated: whether the hosts are those of the Slurm allocation that we are in.
        mpi: path and dialect of the mpirun that is here.

    Raises UsageError for words that cannot be read, CannotError where no way is there.
    """
    if manner in (None, "ssh") and ssh is not None:
        return Ssh(words=_words(ssh))
    srun = shutil.which("srun")
    if manner == "srun" or (manner is None and allocated and srun):
        if srun is None:
            raise _not_here("srun", "name the hosts and take --through ssh")
        return Srun(program=srun)
    program = shutil.which("ssh")
    if manner == "ssh" or (manner is None and program):
        if program is None:
            raise _not_here("ssh", "install it (Debian: openssh-client), or take --through mpirun")
        return Ssh(words=(program,))
    if mpi is None:
        raise _not_here("mpirun" if manner else "ssh, srun and mpirun", "install openssh-client")
    if mpi[1] == NO_INPUT:
        raise _not_here("an mpirun that passes input on (Open MPI 5 does not)", "--through ssh")
    return Mpirun(program=mpi[0], dialect=mpi[1])


def _words(ssh: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(ssh))
    except ValueError as error:
        raise UsageError(
            f"cannot read --ssh {ssh!r}: {error}", hint='--ssh "ssh -F FILE"'
        ) from error
    if not words or shutil.which(words[0]) is None:
        raise _not_here(words[0] if words else "an empty --ssh", 'as in --ssh "ssh -F FILE"')
    return words


def _not_here(what: str, hint: str) -> CannotError:
    return CannotError(f"there is no way to other hosts: {what} is not here", hint=hint)


def _common(node: Node, code: int | None, said: str) -> Explained:
    """The causes that are the same for ssh, srun and mpirun."""
    old = re.search(re.escape(TOO_OLD) + r" ([\d.]+)", said)
    install = f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or later on {node.name}"
    if old:
        return f"its Python is {old[1]}", install
    if code == 127 or re.search(r"python3?: (command )?not found", said):
        return NO_PYTHON, install
    if re.search(r"No usable temporary directory", said):
        return "no folder there can be written", f"make room in /tmp on {node.name}, or set TMPDIR"
    if code == 0:
        return "the program that was started there has ended", None
    last = [line.strip()[:200] for line in said.splitlines() if line.strip()][-1:]
    return ": ".join(("it ended" if code is None else f"it ended with {code}", *last)), None
