"""A PostgreSQL server of our own, on a free port of loopback, gone when the block is over."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PASSWORD = "ge/heim@:%words"
"""Of every user; in an address its signs are written as %XX."""
IN_ADDRESS = "ge%2Fheim%40%3A%25words"


def programs() -> Path | None:
    """The folder of initdb and postgres, the newest; None where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if found:
        return found[-1].parent
    there = shutil.which("postgres")
    return Path(there).resolve().parent if there else None


@dataclass
class Server:
    """A server that can be stopped and started again."""

    folder: Path
    port: int
    user: dict[str, object]
    process: subprocess.Popen[bytes] | None = None

    def address(self, user: str = "tuner", password: str = "", database: str = "studies") -> str:
        return f"postgresql://{user}{password and ':' + password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        bin_ = programs()
        assert bin_ is not None
        command = [
            bin_ / "postgres", "-D", self.folder / "data", "-p", str(self.port), "-k", self.folder,
            "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "max_connections=30",
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd="/", start_new_session=True, **self.user
            )
        asked = [bin_ / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        end = time.monotonic() + 60
        while subprocess.run(asked, check=False).returncode:
            assert time.monotonic() < end, (self.folder / "log").read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """At once, as a server whose machine is switched off."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(timeout=30)
            self.process = None

    def run(self, statement: str, *, user: str = "owner", database: str = "studies") -> str:
        """What psql prints for a statement."""
        bin_ = programs()
        assert bin_ is not None
        return subprocess.run(
            [bin_ / "psql", "-qAtX", "-h", "127.0.0.1", "-p", str(self.port), "-U", user,
             "-d", database, "-c", statement],
            env={**os.environ, "PGPASSWORD": PASSWORD}, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip


@contextmanager
def server() -> Iterator[Server]:
    """A server with the users owner and tuner (who owns the database studies) and reader."""
    bin_ = programs()
    assert bin_ is not None
    # pytest's own folders can be read by their owner alone, and postgres refuses to run as root.
    with tempfile.TemporaryDirectory(prefix="cputune-postgresql-", dir="/tmp") as name:
        folder = Path(name)
        secret = folder / "password"
        secret.write_text(PASSWORD)
        user: dict[str, object] = {}
        if os.geteuid() == 0:
            account = _account()
            user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            for path in (folder, secret):
                os.chown(path, account.pw_uid, account.pw_gid)
        subprocess.run(
            [bin_ / "initdb", "-D", folder / "data", "-U", "owner", "-A", "scram-sha-256",
             "--pwfile", secret, "-E", "UTF8", "--locale=C", "--no-sync"],
            check=True, capture_output=True, cwd="/", **user,
        )  # fmt: skip
        found = Server(folder, _free_port(), user)
        try:
            found.start()
            for statement in (
                f"create role tuner login password '{PASSWORD}'",
                f"create role reader login password '{PASSWORD}'",
                "create database studies owner tuner",
            ):
                found.run(statement, database="postgres")
            yield found
        finally:
            found.stop()


def _account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
