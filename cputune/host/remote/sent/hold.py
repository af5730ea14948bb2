"""Holds a launch on this host: unpacks its files, starts it, and cleans up after it.

It ends everything that it started, and removes the folder, as soon as its standard input ends, the
connection home is cut, or a signal arrives. So it also ends if the process that started it is
killed, or a cable is pulled. The question has ``files`` (name: text), the names of those that are
``programs``, ``argv``, ``env`` and ``cwd``, with ``{folder}`` for the folder of the files, and
``home``: the address of a connection that only shows that we are alive.
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
"""Variables for the rank by which we were started. The launch must not inherit them: Open MPI
starts nothing below a rank, and other programs would take the launch for rank 0."""

LONGEST_PLACE = 48
"""Characters. A Unix socket's path has at most 108 bytes (unix(7)). We and multiprocessing need the
rest.
"""

GONE_SECONDS = 20.0
"""Seconds that a process may outlive SIGKILL while the kernel holds it (a disk that does not
answer).
"""


def below(root: int) -> list[int]:
    """The living descendants of a process."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # the process has ended
            continue
        if fields[0] not in (b"Z", b"X"):
            parents.setdefault(int(fields[1]), []).append(int(name))
    descendants, new = [], [root]
    while new:
        new = [pid for parent in new for pid in parents.get(parent, [])]
        descendants += new
    return descendants


def end_all() -> None:
    """Kill everything that was started here."""
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
    """Write the files, and make the folder for the script's output."""
    os.makedirs(os.path.join(folder, "scratch"))
    for name, text in asked["files"].items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        mode = 0o600
        if name in asked["programs"]:
            mode = 0o700
        os.chmod(path, mode)


def hold(asked: dict[str, Any], folder: str) -> int:
    """Start the launch and wait. Returns its exit status, or 75 if it was ended."""
    unpack(asked, folder)
    argv = [word.replace("{folder}", folder) for word in asked["argv"]]
    variables = {n: v for n, v in os.environ.items() if not n.startswith(OF_LAUNCHERS)}
    for name, value in asked["env"].items():
        variables[name] = value.replace("{folder}", folder)
    sys.path.insert(0, os.path.join(folder, "lib"))
    from cputune.inside.messages import connected

    home = connected(asked["home"])
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = subprocess.Popen(
        argv,
        env=dict(variables, TMPDIR=folder),  # torchrun leaves its torchelastic_* folders behind
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
            if code < 0:
                return 128 - code
            return code
        try:
            if (0 in ready and not os.read(0, 4096)) or (home in ready and not home.recv(4096)):
                return 75
        except OSError:
            return 75


def main() -> None:
    """Hold the launch. Leaves no process and no file behind, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    place = None
    if len(tempfile.gettempdir()) > LONGEST_PLACE:
        place = "/tmp"
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
