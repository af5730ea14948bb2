"""Holds a launch on this host: unpacks its files, starts it, and leaves nothing of it behind.

It ends all that it has started, and removes the folder, as soon as its standard input ends, the
line home is cut, or a signal says so: whatever becomes of who started it, SIGKILL and a pulled
cable included. The question has ``files`` (name: text), the names of those that are ``programs``,
``argv``, ``env`` and ``cwd``, with ``{folder}`` where the folder of the files is meant, and
``home``: the address for a connection that says nothing but that we live, made as by a rank.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2), linux/prctl.h."""

OF_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "ORTE_", "OPAL_", "HYDI_", "HYDRA_", "MPI_LOCAL")
"""What the way here has set for a rank of its own, which this launch is none of: Open MPI starts
nothing below one, and who asks takes it for rank 0."""

LONGEST_PLACE = 48
"""Of a Unix socket's path (108 bytes: unix(7)) the rest is ours and multiprocessing's."""

GONE_SECONDS = 20.0
"""A process that the kernel holds (a disk that does not answer) outlives SIGKILL so long."""


def below(root: int) -> list[int]:
    """The living processes that one has started, and that those have started."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        if fields[0] not in (b"Z", b"X"):
            parents.setdefault(int(fields[1]), []).append(int(name))
    found, new = [], [root]
    while new:
        new = [pid for parent in new for pid in parents.get(parent, [])]
        found += new
    return found


def end_all() -> None:
    """End everything that was ever started here."""
    until = time.monotonic() + GONE_SECONDS
    while time.monotonic() < until:
        left = below(os.getpid())
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.02)


def unpack(asked: dict[str, Any], folder: str) -> None:
    """Write the files, and make the folder for what the script would have written."""
    os.makedirs(os.path.join(folder, "scratch"))
    for name, text in asked["files"].items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o700 if name in asked["programs"] else 0o600)


def hold(asked: dict[str, Any], folder: str) -> int:
    """Start it and wait; its exit status, or that of who was told to end."""
    unpack(asked, folder)
    words = [word.replace("{folder}", folder) for word in asked["argv"]]
    variables = {name: value.replace("{folder}", folder) for name, value in asked["env"].items()}
    ours = {n: v for n, v in os.environ.items() if not n.startswith(OF_LAUNCHERS)}
    sys.path.insert(0, os.path.join(folder, "lib"))
    from cputune.inside.messages import connected

    home = connected(asked["home"])
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = subprocess.Popen(
        words,
        env=dict(ours, **variables, TMPDIR=folder),  # torchrun never removes its torchelastic_*
        cwd=asked["cwd"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    while True:
        waited: list[Any] = [0, home, wake_read]
        ready, _, _ = select.select(waited, [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
        code = child.poll()
        if code is not None:
            return code if code >= 0 else 128 - code
        try:
            if (0 in ready and not os.read(0, 4096)) or (home in ready and not home.recv(4096)):
                return 75
        except OSError:
            return 75


def main() -> None:
    """Hold the launch, and leave no process and no file of it, however this ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    place = None if len(tempfile.gettempdir()) <= LONGEST_PLACE else "/tmp"
    folder = tempfile.mkdtemp(prefix="cputune-launch-", dir=place)
    status = 3
    try:
        status = hold(json.loads(sys.argv[1]), folder)
    except OSError as error:
        sys.stderr.write(f"error: {error}\n")
    finally:
        signal.set_wakeup_fd(-1)
        end_all()
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
