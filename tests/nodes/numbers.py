"""Several clusters on one machine: each has a number, with it addresses and names of its own."""

from __future__ import annotations

import contextlib
import ipaddress
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
from nodes.namespaces import CPUSETS, call, remove_cpuset

BASE = Path(tempfile.gettempdir(), "cputune-nodes")
RANGES = ("10.213", "10.87", "172.29", "192.168")
MOST = 200
"""Clusters on one machine at a time: the third number of their addresses."""
HERE = 254
"""The last number of our own address in their network."""
LEG = "ctnodes"
"""How our own interfaces in their networks are called, before the number."""


def leg(number: int) -> str:
    """Our own interface in the network of a cluster."""
    return f"{LEG}{number}"


def own_address(number: int) -> str:
    """Our own address there."""
    return address(number, HERE)


@contextlib.contextmanager
def free_number() -> Iterator[int]:
    """The number of a cluster that is nobody's; what another left under a number is removed.

    The owner of a number holds a socket's name, which the kernel frees when it dies.
    """
    taken: int | None = None
    with contextlib.ExitStack() as held:
        for number in range(1, MOST):
            owner = socket.socket(socket.AF_UNIX)
            try:
                owner.bind(f"\0cputune-nodes-{number}")
            except OSError:
                owner.close()
                continue
            _remove_what_is_left(number)
            if taken is None:
                taken = number
                held.enter_context(owner)
            else:
                owner.close()
        assert taken is not None, f"{MOST} clusters are on this machine"
        yield taken


def _remove_what_is_left(number: int) -> None:
    shutil.rmtree(BASE / str(number), ignore_errors=True)
    if leg(number) in psutil.net_if_addrs():
        call("ip", "link", "del", leg(number))
    for group in CPUSETS.glob(f"cputune-nodes-{number}-*"):
        remove_cpuset(group)


def address(number: int, place: int) -> str:
    """Of the host that is so many-th in a cluster."""
    return f"{_range()}.{number}.{place}"


def _range() -> str:
    """The first of our ranges in which this machine has no address of another's."""
    others = [
        ipaddress.ip_address(entry.address)
        for interface, entries in psutil.net_if_addrs().items()
        if not interface.startswith(LEG)
        for entry in entries
        if entry.family == socket.AF_INET
    ]
    for range_ in RANGES:
        network = ipaddress.ip_network(f"{range_}.0.0/16")
        if not any(address in network for address in others):
            return range_
    raise AssertionError(f"every range is taken: {RANGES}")
