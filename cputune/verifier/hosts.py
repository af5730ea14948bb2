"""A launch on several hosts, verified from one of them: reached, started and heard.

mpirun and accelerate start their far ranks themselves, through ssh. An ``ssh`` of ours stands
first on PATH then; it hands on the variables by which a rank reports, which Open MPI carries
to no other host unasked, and takes the words that the user reaches hosts by. torchrun is started
by us on each host, below an agent that ends it whatever becomes of us.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cputune.errors import CputuneError
from cputune.host import Command
from cputune.inside import SCRATCH_VARIABLE, SHOW_VARIABLE, SOCKET_VARIABLE, site_directory
from cputune.nodes.line import Line
from cputune.nodes.many import on_each
from cputune.nodes.named import Node
from cputune.nodes.reach import Ssh
from cputune.ranks.ports import held_port
from cputune.ranks.process_here import bootstrap
from cputune.verifier.records import NOT_CHECKED, Outcome

REACH_SECONDS = 30.0
CARRIED = ("PYTHONPATH", SOCKET_VARIABLE, SCRATCH_VARIABLE, SHOW_VARIABLE)
"""What makes a Python process report, wherever it runs."""

MISSING = 'for path; do [ -e "$path" ] || printf "%s\\n" "$path"; done'

SSH = """#!{python}
import os, shlex, sys
words, at = sys.argv[1:], 0
while at < len(words) and words[at].startswith("-"):
    at += 2 if words[at][1:] in set("BbcDEeFIiJLlmOopQRSWw") else 1
command = words[at + 1 :]
if command:
    told = [shlex.quote(n + "=" + os.environ[n]) for n in {carried!r} if n in os.environ]
    command = ["env", *told, "sh", "-c", shlex.quote(" ".join(command))]
os.execv({ssh!r}[0], [*{ssh!r}, *words[: at + 1], *command])
"""
"""Its command becomes one word for a shell: Open MPI's is a line of several commands."""


def cannot_run(
    hosts: Sequence[str], ssh: Sequence[str], needed: Sequence[str], consumer: str
) -> Outcome | None:
    """Why the launch cannot be tried: a host that is not reached, or that lacks a file.

    ``needed`` are paths that every host must have; None where all is well.
    """
    far = [Node(name=host) for host in hosts if not is_here(host)]
    paths = [*needed, str(site_directory() / "sitecustomize.py")]
    try:
        heard = on_each(
            far, Ssh(words=tuple(ssh)), lambda line: _missing(line, paths), REACH_SECONDS
        )
    except CputuneError as error:
        return _outcome(str(error), error.hint, consumer)
    for one in heard:
        if one.unreachable is not None:
            return _outcome(str(one.unreachable), one.unreachable.hint, consumer)
        for path in one.answer or ():
            copy = f"rsync -a {shlex.quote(os.path.dirname(path))}/ {one.node.name}:{path}"
            hint = copy if path in needed else "install cputune there, at the same path"
            return _outcome(f"{path} is not on {one.node.name}", hint, consumer)
    return None


def _missing(line: Line, paths: Sequence[str]) -> tuple[str, ...]:
    done = line.run(
        Command(argv=("sh", "-c", MISSING, "sh", *paths), timeout_seconds=REACH_SECONDS)
    )
    return tuple(done.stdout.splitlines())


def _outcome(summary: str, remedy: str | None, consumer: str) -> Outcome:
    return Outcome(
        name="launch", state=NOT_CHECKED, consumer=consumer, summary=summary, remedy=remedy
    )


@contextlib.contextmanager
def scratch_everywhere(hosts: Sequence[str], ssh: Sequence[str], folder: Path) -> Iterator[Path]:
    """A folder for what scripts would have written; what they made of it on far hosts goes too."""
    scratch = folder / "scratch"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        far = [Node(name=host) for host in hosts if not is_here(host)]
        remove = Command(argv=("rm", "-rf", "--", str(folder)), timeout_seconds=REACH_SECONDS)
        with contextlib.suppress(CputuneError, OSError):
            on_each(far, Ssh(words=tuple(ssh)), lambda line: line.run(remove), REACH_SECONDS)


def through_ssh(
    path: Path, environment: Mapping[str, str], ssh: Sequence[str], folder: Path
) -> Command:
    """The launch script, with an ssh that hands on what makes ranks report."""
    programs = folder / "bin"
    programs.mkdir()
    found = shutil.which(ssh[0], path=environment.get("PATH"))
    words = [found or ssh[0], *ssh[1:]]
    program = programs / "ssh"
    program.write_text(
        SSH.format(python=sys.executable, carried=CARRIED, ssh=words), encoding="utf-8"
    )
    program.chmod(0o700)
    path_variable = f"{programs}:{environment.get('PATH', os.defpath)}"
    return Command(argv=("bash", str(path)), environment={**environment, "PATH": path_variable})


def on_every_host(
    path: Path, environment: Mapping[str, str], hosts: Sequence[str], ssh: Sequence[str]
) -> list[Command]:
    """The launch script on each host, as torchrun wants it."""
    with held_port() as holder:
        port = str(holder.getsockname()[1])
    code = bootstrap("cputune.verifier.far_launch", "main(sys.argv[1:])")
    commands = []
    for number, host in enumerate(hosts):
        own = {"NODE_RANK": str(number), "PORT": port}
        own |= {name: environment[name] for name in ("PYTHON",) if name in environment}
        argv: tuple[str, ...] = ("bash", str(path))
        if not is_here(host):
            argv = (
                sys.executable,
                "-c",
                code,
                shlex.join(ssh),
                host,
                ",".join((*CARRIED, *own)),
                *argv,
            )
        commands.append(Command(argv=argv, environment={**environment, **own}))
    return commands


def own_address(hosts: Sequence[str]) -> str:
    """The address of this machine by which it speaks to the first host that is another one."""
    far = [host for host in hosts if not is_here(host)]
    for host in far:
        with contextlib.suppress(OSError, UnicodeError):
            for family, kind, _, _, place in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
                with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                    probe.connect(place)  # a datagram socket sends nothing by this
                    return str(probe.getsockname()[0])
    return "127.0.0.1"


def is_here(host: str) -> bool:
    """Whether a host is this machine: by its name, or because an address of it can be bound."""
    if host == socket.gethostname():
        return True
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, _, _, place in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(place)
                return True
    return False
