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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from cputune.errors import CputuneError
from cputune.host import Command
from cputune.inside import SCRATCH_VARIABLE, SHOW_VARIABLE, SOCKET_VARIABLE, site_directory
from cputune.plan import Plan
from cputune.ranks.engines import HERE, Held, Launch, is_here, ssh_handing_on
from cputune.ranks.messages import RankCommand
from cputune.remote.ask import ask_each
from cputune.remote.named import Node
from cputune.remote.reach import Ssh
from cputune.verifier.records import Outcome, not_checked

REACH_SECONDS = 30.0
CARRIED = ("PYTHONPATH", SOCKET_VARIABLE, SCRATCH_VARIABLE, SHOW_VARIABLE)
"""What makes a Python process report, wherever it runs."""

MISSING = """import json, os, sys
paths = json.loads(sys.argv[1])["paths"]
print(json.dumps({"missing": [path for path in paths if not os.path.exists(path)]}))
"""
REMOVE = """import json, shutil, sys
shutil.rmtree(json.loads(sys.argv[1])["folder"], ignore_errors=True)
print("{}")
"""


def cannot_run(
    hosts: Sequence[str], ssh: Sequence[str], needed: Sequence[str], consumer: str
) -> Outcome | None:
    """Why the launch cannot be tried: a host that is not reached, or that lacks a file.

    ``needed`` are paths that every host must have; None where all is well.
    """
    far = [Node(name=host) for host in hosts if not is_here(host)]
    paths = [*needed, str(site_directory() / "sitecustomize.py")]
    asked = {"paths": paths}
    try:
        heard = ask_each(far, Ssh(words=tuple(ssh)), MISSING, lambda _: asked, REACH_SECONDS)
    except CputuneError as error:
        return not_checked("launch", str(error), error.hint, consumer)
    for one in heard:
        if one.told is None:
            away = one.unreachable
            return not_checked("launch", str(away), away.hint if away else None, consumer)
        for path in one.told.get("missing", ()):
            copy = f"rsync -a {shlex.quote(os.path.dirname(path))}/ {one.node.name}:{path}"
            hint = copy if path in needed else "install cputune there, at the same path"
            return not_checked("launch", f"{path} is not on {one.node.name}", hint, consumer)
    return None


@contextlib.contextmanager
def scratch_everywhere(hosts: Sequence[str], ssh: Sequence[str], folder: Path) -> Iterator[Path]:
    """A folder for what scripts would have written; what they made of it on far hosts goes too."""
    scratch = folder / "scratch"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        far = [Node(name=host) for host in hosts if not is_here(host)]
        asked = {"folder": str(folder)}
        with contextlib.suppress(CputuneError, OSError):
            ask_each(far, Ssh(words=tuple(ssh)), REMOVE, lambda _: asked, REACH_SECONDS)


def through_ssh(
    path: Path, environment: Mapping[str, str], ssh: Sequence[str], folder: Path
) -> Command:
    """The launch script, with an ssh that hands on what makes ranks report."""
    programs = ssh_handing_on(folder, CARRIED, ssh, environment)
    path_variable = f"{programs}:{environment.get('PATH', os.defpath)}"
    return Command(argv=("bash", str(path)), environment={**environment, "PATH": path_variable})


def on_every_host(
    path: Path,
    plan: Plan,
    environment: Mapping[str, str],
    hosts: Sequence[str],
    ssh: Sequence[str],
) -> Callable[[Mapping[str, str]], Sequence[RankCommand]]:
    """The launch script on each host, as torchrun wants it, held as a trial is."""

    def begin(reporting: Mapping[str, str]) -> Sequence[RankCommand]:
        launch = Launch(
            plan=plan,
            nodes=tuple(Node(name=host) for host in hosts),
            argv=("bash", str(path)),
            variables={**reporting, SCRATCH_VARIABLE: f"{HERE}/scratch"},
            environment=environment,
            home=reporting[SOCKET_VARIABLE],
            folder=path.parent,
        )
        return Held(Ssh(words=tuple(ssh))).start(launch)

    return begin
