"""Holds a launch on this host: unpacks its files, starts it, and cleans up after it.

It ends everything that it started, and removes the folder, as soon as its standard input ends or is
silent for too long, or a signal arrives. So it also ends if the process that started it is killed,
or a cable is pulled. The question has ``files`` (name: text), the names of those that are
``programs``, ``argv``, ``env`` and ``cwd``, with ``{folder}`` for the folder of the files.

Ranks connect to a Unix socket in the folder. What they send goes to our standard output, and turns
for them come over our standard input (``ranks/relay.py``). If the question has a ``relay``, the
ranks are started by somebody else: that is the path of the socket. At the end its folder is removed
if it was copied here, by ``remove`` of ``place``, the text of place.py. If the launch is to be
``shown``, standard output is that of the launch.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

# prctl(2), linux/prctl.h.
PR_SET_CHILD_SUBREAPER = 36

# Variables for the rank by which we were started. The launch must not inherit them: Open MPI
# starts nothing below a rank, and other programs would take the launch for rank 0.
OF_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "ORTE_", "OPAL_", "HYDI_", "HYDRA_", "MPI_LOCAL")

# Characters. A Unix socket's path has at most 108 bytes (unix(7)). We and multiprocessing need the
# rest.
LONGEST_PLACE = 48

# An empty line comes every BEAT_SECONDS. If none comes for SILENT_SECONDS, the tuner is gone.
BEAT_SECONDS, SILENT_SECONDS = 5.0, 30.0

# As much as can be written without waiting to a pipe that is ready (pipe(7)).
PIECE_BYTES = 4096

# Seconds that a process may outlive SIGKILL while the kernel holds it (a disk that does not
# answer).
GONE_SECONDS = 20.0


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
        parent = new.pop()
        children = parents.get(parent, [])
        descendants += children
        new += children
    return descendants


def end_all() -> None:
    """Kill everything that was started here."""
    until = time.monotonic() + GONE_SECONDS
    while time.monotonic() < until:
        living = below(os.getpid())
        if not living:
            return
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.02)


def unpack(task: dict[str, Any], folder: str) -> None:
    """Write the files, and make the folder for the script's output."""
    os.makedirs(os.path.join(folder, "scratch"))
    for name, text in task["files"].items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        mode = 0o600
        if name in task["programs"]:
            mode = 0o700
        os.chmod(path, mode)


class Relay:
    """The socket of the ranks of this host, copied to standard output and from standard input."""

    def __init__(self, path: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A socket's path has 107 bytes at most (unix(7)); the folder's alone may be longer.
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        self.listener.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
        os.close(folder)
        self.listener.listen(256)
        self.ranks: dict[int, socket.socket] = {}
        self.parts: dict[int, bytes] = {}
        self.count = 0
        self.to_write = bytearray(b"@cputune\n")
        self.turns = b""
        self.heard_at = time.monotonic()
        self.shown = False

    def wait(self, more: list[Any]) -> bool:
        """Copy what is there; False if the other end is gone."""
        waited: list[Any] = [0, self.listener, *more]
        if self.shown:
            self.to_write.clear()
        # Ranks are read only if nothing waits to be written: a slow connection slows them down and
        # does not fill our memory.
        if not self.to_write:
            waited += self.ranks.values()
        writing = [1] if self.to_write else []
        ready, writable, _ = select.select(waited, writing, [], BEAT_SECONDS)
        if writable:
            del self.to_write[: os.write(1, self.to_write[:PIECE_BYTES])]
        if self.listener in ready:
            self.count += 1
            self.ranks[self.count] = self.listener.accept()[0]
            self.parts[self.count] = b""
        for number, rank in list(self.ranks.items()):
            if rank in ready:
                self.report(number, rank)
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return False
            self.heard_at = time.monotonic()
            self.turn(data)
        return time.monotonic() - self.heard_at < SILENT_SECONDS

    def report(self, number: int, rank: socket.socket) -> None:
        """Write what a rank sends, in whole lines."""
        try:
            data = rank.recv(1 << 16)
        except OSError:
            data = b""
        *lines, self.parts[number] = (self.parts[number] + data).split(b"\n")
        for line in lines:
            self.to_write += b"@cputune %d %s\n" % (number, line)
        if not data:
            self.to_write += b"@cputune %d \n" % number
            self.drop(number)

    def turn(self, data: bytes) -> None:
        """Give the lines from the tuner to the ranks; an empty one is answered."""
        *lines, self.turns = (self.turns + data).split(b"\n")
        for line in lines:
            number, _, text = line.partition(b" ")
            if not number:
                self.to_write += b"@cputune\n"
            elif int(number) in self.ranks and text:
                try:
                    self.ranks[int(number)].sendall(text + b"\n")
                except OSError:
                    self.drop(int(number))
            elif int(number) in self.ranks:
                self.drop(int(number))

    def drop(self, number: int) -> None:
        self.ranks.pop(number).close()
        del self.parts[number]


def hold(task: dict[str, Any], folder: str) -> int:
    """Start the launch and wait. Returns its exit status, or 75 if it was ended."""
    unpack(task, folder)
    argv = [word.replace("{folder}", folder) for word in task["argv"]]
    variables = {n: v for n, v in os.environ.items() if not n.startswith(OF_LAUNCHERS)}
    for name, value in task["env"].items():
        variables[name] = value.replace("{folder}", folder)
    relay = Relay(os.path.join(folder, "socket"))
    relay.shown = task.get("shown", False)
    # The end of the child wakes select at once, and not after BEAT_SECONDS.
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = subprocess.Popen(
        argv,
        env=dict(variables, TMPDIR=folder),  # torchrun leaves its torchelastic_* folders behind
        cwd=task["cwd"],
        stdin=subprocess.DEVNULL,
        stdout=1 if relay.shown else 2,
        start_new_session=True,
    )
    os.set_blocking(wake_read, False)
    while relay.wait([wake_read]):
        with contextlib.suppress(BlockingIOError):
            os.read(wake_read, 4096)
        code = child.poll()
        if code is not None:
            finish(relay)
            if code < 0:  # ended by a signal: as a shell reports it
                return 128 - code
            return code
    return 75


def finish(relay: Relay) -> None:
    """Write the last words of ranks that have ended."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        ready = select.select([relay.listener, *relay.ranks.values()], [], [], 0)[0]
        if not (ready or relay.to_write) or not relay.wait([]):
            return


def main() -> None:
    """Hold the launch. Leaves no process and no file behind, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    task = json.loads(sys.argv[1])
    if task.get("relay"):
        path = f"{task['relay']}.{os.uname().nodename}"
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        relay = Relay(path)
        try:
            while relay.wait([]):
                pass
        finally:
            with contextlib.suppress(OSError):  # a rank that lost us has removed the folder
                os.unlink(path)
            # A launcher that is killed kills its ranks at once: they remove nothing.
            place_py: dict[str, Any] = {"__name__": "place"}
            exec(task["place"], place_py)
            place_py["remove"](os.path.dirname(path))
            os._exit(75)
    place = None
    if len(tempfile.gettempdir()) > LONGEST_PLACE:
        place = "/tmp"
    folder = tempfile.mkdtemp(prefix="cputune-launch-", dir=place)
    status = 3
    try:
        status = hold(task, folder)
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
