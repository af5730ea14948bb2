"""How a host is reached: by ssh, by srun inside a Slurm allocation, or by mpirun.

Each way is a record that builds the command to start a program on a node with our standard input
and output, and that explains why the command failed.
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

# The oldest Python of other hosts: the scripts that are sent there need no later one.
OLDEST_PYTHON = (3, 7)

NO_PYTHON = "there is no python3"

# What a sent script reports if the Python there is too old.
TOO_OLD = "cputune needs Python 3.7 here, and this is"

CONNECT_SECONDS = 10  # for ssh to connect
# ssh closes a connection after this many tests without an answer, one every ALIVE_SECONDS. The
# agent on the host does the same.
ALIVE_SECONDS, ALIVE_COUNT = 5, 4

# The exit status of ssh when it could not connect, or the connection was cut.
SSH_FAILED = 255

# What only a Python that was started on the host writes.
PYTHON_ERRORS = re.compile(rf"Traceback \(most recent call last\)|{re.escape(TOO_OLD)}")

# The dialect of mpirun that passes no standard input to a rank on another host, and then waits
# forever (open-mpi/ompi#11990, openpmix/prrte#2373; 5.0.11 too). So it cannot start the agent.
NO_INPUT = "openmpi5"

Manner = Literal["ssh", "srun", "mpirun"]
# Why a host could not be reached, and what to do.
Explained = tuple[str, str | None]


MessagePatterns = Iterable[tuple[str, str, str]]

_SSH_ERRORS: MessagePatterns = (
    # pattern in the output, reason, hint; {} is the host
    (
        r"Could not resolve hostname|Name or service not known|unknown host",
        "its name is not known here",
        "add {} to /etc/hosts or to DNS",
    ),
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed",
        "find out why; if the change is right: ssh-keygen -R {}",
    ),
    (
        r"Host key verification failed|No \w+ host key is known",
        "its host key is not known here",
        "run ssh {} once by hand, and compare the key that it shows",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "it rejects our key",
        "ssh-copy-id {} (cputune cannot enter a password)",
    ),
    (
        r"Connection refused",
        "no sshd listens there",
        "start sshd on {}, or set its port in ~/.ssh/config",
    ),
    (
        r"No route to host|Network is unreachable",
        "there is no route to it",
        "check that {} is up and in the same network",
    ),
    (
        r"[Cc]onnection timed out|Operation timed out|banner exchange",
        "it gave no answer",
        "check that {} is up, and that no firewall blocks the connection",
    ),
    (
        r"Timeout, server .* not responding|Broken pipe|[Cc]onnection (reset|closed)|^exit 255$",
        "the connection was cut",
        "check that {} is up; `journalctl -u ssh` there may have the reason",
    ),
    (
        r"Bad configuration option|Bad owner or permissions|Can't open user config",
        "ssh cannot read its configuration",
        "run ssh {} by hand to see what is wrong",
    ),
)

_SRUN_ERRORS: MessagePatterns = (
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
    (r"Node failure|NODE_FAIL|down", "Slurm reports the node as down", "sinfo -R has the reason"),
)


class Reach:
    """A way to reach another host.

    ``name`` is the program of the connection, and ``says`` explains its error messages.
    """

    __slots__ = ()
    says: ClassVar[MessagePatterns] = _SSH_ERRORS
    # Prefixes of the variables that it sets for a program. The host itself does not have them.
    sets: ClassVar[tuple[str, ...]] = ()
    name: str

    @property
    def variables(self) -> Mapping[str, str]:
        """Variables that the command needs in addition to our environment."""
        return {}

    @property
    def typed(self) -> str:
        """The command as a user types it: ``ssh -F FILE``, ``srun``, ``mpirun``."""
        return self.name

    def argv(self, node: Node, program: Sequence[str]) -> tuple[str, ...]:
        """The command that starts ``program`` on that node."""
        raise NotImplementedError

    def explain(self, node: Node, code: int | None, stderr: str) -> Explained:
        """Explain this exit status and this stderr, and say what to do."""
        # ssh writes nothing if the server stopped answering.
        message = stderr.strip() or f"exit {code}"
        for pattern, reason, hint in self.says:
            if re.search(pattern, message):
                return reason, hint.format(node.login)
        return _common(node, code, stderr)

    def has_started(self, code: int | None, stderr: str) -> bool:
        """Whether the program was started on the host, and failed there."""
        return PYTHON_ERRORS.search(stderr) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh(Reach):
    """OpenSSH. ``words`` may contain another configuration: ``("ssh", "-F", FILE)``.

    It never asks for input, because a password cannot be typed for many hosts.
    """

    words: tuple[str, ...] = ("ssh",)
    name: str = "ssh"

    @property
    def typed(self) -> str:
        program, *options = self.words
        if program == shutil.which(self.name):
            program = self.name
        return shlex.join((program, *options))

    def argv(self, node: Node, program: Sequence[str]) -> tuple[str, ...]:
        options = (
            "BatchMode=yes",
            f"ConnectTimeout={CONNECT_SECONDS}",
            f"ServerAliveInterval={ALIVE_SECONDS}",
            f"ServerAliveCountMax={ALIVE_COUNT}",
            "LogLevel=ERROR",
        )
        # -n or a terminal would take the standard input away from the agent.
        argv = list(self.words) + ["-T"]
        for option in options:
            argv += ["-o", option]
        return tuple(argv + [node.login, shlex.join(program)])

    def has_started(self, code: int | None, stderr: str) -> bool:
        """OpenSSH ends with 255 if it fails itself, else with the status of the program."""
        return code is not None and 0 <= code < SSH_FAILED


# Variables of salloc or an outer step that srun would apply again: the step would get one CPU.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Srun(Reach):
    """A step of our Slurm allocation, with all CPUs of the job on the node."""

    says: ClassVar[MessagePatterns] = _SRUN_ERRORS
    program: str = "srun"
    name: str = "srun"

    def argv(self, node: Node, program: Sequence[str]) -> tuple[str, ...]:
        step = self._step(["-w", node.name])
        if node.cpus is not None:
            step.append(f"--cpus-per-task={node.cpus}")
        return tuple(step) + tuple(program)

    def on_node(self, number: int, program: Sequence[str]) -> tuple[str, ...]:
        """The command on a node of a job by its number there, from 0."""
        return tuple(self._step([f"--relative={number}"])) + tuple(program)

    def _step(self, where: list[str]) -> list[str]:
        argv = ["env"]
        for name in INHERITED:
            argv += ["-u", name]
        argv.append(self.program)
        return argv + where + ["-N1", "-n1", "--overlap", "--cpu-bind=none", "--quiet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mpirun(Reach):
    """One rank on the host, started by the mpirun of a dialect, without binding."""

    sets: ClassVar[tuple[str, ...]] = (
        "OMPI_",
        "PMIX_",
        "PMI_",
        "ORTE_",
        "OPAL_",
        "PRTE_",
        "HYDI_",
        "HYDRA_",
        "MPI_LOCAL",
        "MPIR_",
    )
    dialect: str
    program: str = "mpirun"
    name: str = "mpirun"

    @property
    def variables(self) -> Mapping[str, str]:
        if self.dialect == "intelmpi":
            return {"I_MPI_PIN": "0"}
        if self.dialect.startswith("openmpi") and os.geteuid() == 0:
            return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {}

    def argv(self, node: Node, program: Sequence[str]) -> tuple[str, ...]:
        if self.dialect.startswith("openmpi"):
            options = ["--host", f"{node.name}:1", "-n", "1", "--bind-to", "none"]
        else:
            options = ["-hosts", node.name, "-n", "1"]
            if self.dialect == "mpich":
                options += ["-bind-to", "none"]
        return (self.program, *options, *program)


def find_reach(
    manner: Manner | None = None,
    *,
    ssh: str | None = None,
    allocated: bool = False,
    mpi: tuple[str, str] | None = None,
) -> Reach:
    """The requested way to other hosts, or the first available one.

    Args:
        manner: ``ssh``, ``srun`` or ``mpirun``. None: choose.
        ssh: another ssh with its options, as one text (``ssh -F file``).
        allocated: whether the hosts are those of our Slurm allocation.
        mpi: path and dialect of the mpirun on this machine.

    Raises UsageError for an ssh command that cannot be parsed, CannotError if no way is available.
    """
    if manner in (None, "ssh") and ssh is not None:
        return Ssh(words=_ssh_argv(ssh))
    srun = shutil.which("srun")
    if manner == "srun" or (manner is None and allocated and srun):
        if srun is None:
            raise _not_here("srun", "name the hosts, and use --through ssh")
        return Srun(program=srun)
    program = shutil.which("ssh")
    if manner == "ssh" or (manner is None and program):
        if program is None:
            raise _not_here("ssh", "install it (Debian: openssh-client), or use --through mpirun")
        return Ssh(words=(program,))
    if mpi is None:
        missing = "mpirun"
        if manner is None:
            missing = "ssh, srun or mpirun"
        raise _not_here(missing, "install openssh-client")
    if mpi[1] == NO_INPUT:
        raise _not_here("an mpirun that passes input on (Open MPI 5 does not)", "--through ssh")
    return Mpirun(program=mpi[0], dialect=mpi[1])


def _ssh_argv(ssh: str) -> tuple[str, ...]:
    try:
        argv = tuple(shlex.split(ssh))
    except ValueError as error:
        raise UsageError(
            f"cannot read --ssh {ssh!r}: {error}", hint='--ssh "ssh -F FILE"'
        ) from error
    if not argv or shutil.which(argv[0]) is None:
        missing = "the program of --ssh"
        if argv:
            missing = argv[0]
        raise _not_here(missing, 'as in --ssh "ssh -F FILE"')
    return argv


def _not_here(what: str, hint: str) -> CannotError:
    return CannotError(f"other hosts cannot be reached: {what} was not found", hint=hint)


def _common(node: Node, code: int | None, stderr: str) -> Explained:
    """Explain the failures that ssh, srun and mpirun have in common."""
    old = re.search(re.escape(TOO_OLD) + r" ([\d.]+)", stderr)
    install = f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or later on {node.name}"
    if old:
        return f"its Python is {old[1]}", install
    if code == 127 or re.search(r"python3?: (command )?not found", stderr):
        return NO_PYTHON, install
    if re.search(r"No usable temporary directory", stderr):
        return "no folder there can be written", f"free space in /tmp on {node.name}, or set TMPDIR"
    if code == 0:
        return "the program that was started there has ended", None
    reason = "it ended"
    if code is not None:
        reason += f" with {code}"
    lines = [line.strip()[:200] for line in stderr.splitlines() if line.strip()]
    if lines:
        reason += f": {lines[-1]}"
    return reason, None
