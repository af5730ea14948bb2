"""Let packets wait: a queue of the kernel's firewall, read by this process.

    python delay.py QUEUE SECONDS

`tc` delays with netem, which not every kernel has; NFQUEUE does what is needed of it here. Only
the heads of packets come this far, in the order in which they came, and each is let go when it
has waited. Standard library alone. The numbers are those of <linux/netfilter/nfnetlink_queue.h>.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator

NETLINK_NETFILTER = 12
SUBSYSTEM = 3 << 8
PACKET, CONFIG, VERDICT_BATCH = SUBSYSTEM, SUBSYSTEM | 2, SUBSYSTEM | 3
REQUEST, ACK = 1, 4
ACCEPT = 1
BIND, COPY_HEAD = 1, 1
FAIL_OPEN, WHOLE_SEGMENTS = 1, 4
MOST_PACKETS = 200_000


def attribute(kind: int, value: bytes) -> bytes:
    """One netlink attribute, padded to four bytes."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind: int, flags: int, queue: int, attributes: bytes) -> bytes:
    """A message of nfnetlink to a queue."""
    body = struct.pack("!BBH", 0, 0, queue) + attributes
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body


def bind(queue: int) -> socket.socket:
    """A socket that is told of the packets of a queue."""
    line = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
    line.bind((0, 0))
    flags = FAIL_OPEN | WHOLE_SEGMENTS
    for attributes in (
        attribute(1, struct.pack("!BBH", BIND, 0, 0)),
        attribute(2, struct.pack("!IB", 0, COPY_HEAD)),
        attribute(3, struct.pack("!I", MOST_PACKETS)),
        attribute(4, struct.pack("!I", flags)) + attribute(5, struct.pack("!I", flags)),
    ):
        line.send(message(CONFIG, REQUEST | ACK, queue, attributes))
        (code,) = struct.unpack_from("=i", line.recv(65536), 16)
        if code:
            raise OSError(-code, os.strerror(-code))
    line.setblocking(False)
    return line


def packets(data: bytes) -> Iterator[int]:
    """The numbers of the packets that one answer of the kernel holds."""
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        place, end = at + 20, at + length
        while kind == PACKET and place + 4 <= end:
            size, name = struct.unpack_from("=HH", data, place)
            if name & 0x3FFF == 1:
                yield struct.unpack_from("!I", data, place + 4)[0]
                break
            place += size + 3 & ~3
        at += length + 3 & ~3


def let_go(line: socket.socket, queue: int, last: int) -> None:
    """Every packet up to this one goes on."""
    verdict = attribute(2, struct.pack("!II", ACCEPT, last))
    line.send(message(VERDICT_BATCH, REQUEST, queue, verdict))


def main() -> None:
    """Read, wait, let go, until we are ended."""
    queue, seconds = int(sys.argv[1]), float(sys.argv[2])
    with contextlib.suppress(OSError):
        os.nice(-10)
    line = bind(queue)
    print("ready", flush=True)
    waiting: deque[tuple[float, int]] = deque()
    while True:
        left = waiting[0][0] - time.monotonic() if waiting else None
        select.select([line], [], [], None if left is None else max(0.0, left))
        now = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting.extend((now + seconds, number) for number in packets(line.recv(1 << 20)))
        last = None
        while waiting and waiting[0][0] <= now:
            last = waiting.popleft()[1]
        if last is not None:
            let_go(line, queue, last)


if __name__ == "__main__":
    main()
