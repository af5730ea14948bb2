"""Ranks of one machine that a test starts itself, numbered as torchrun numbers them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """How a rank ended; its status is None if it had to be killed."""

    status: int | None
    out: str
    err: str


def numbered_ranks(
    count: int, *words: str, cwd: Path, seconds: float = 300, numbered: bool = True
) -> list[Ended]:
    """Start python with these words for each rank, and wait for all of them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    started = []
    for rank in range(count):
        own = {**together, "RANK": str(rank), "LOCAL_RANK": str(rank)} if numbered else {}
        started.append(
            subprocess.Popen(
                [sys.executable, *words],
                cwd=cwd,
                env={**os.environ, "OMP_NUM_THREADS": "1", **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ended = []
    try:
        for process in started:
            try:
                out, err = process.communicate(timeout=seconds)
                ended.append(Ended(process.returncode, out, err))
            except subprocess.TimeoutExpired:
                ended.append(Ended(None, "", ""))
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return ended
