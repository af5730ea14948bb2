"""Whether this host is reached on ports, and reaches those of others. Python 3.7 is enough.

    python meet.py '{"listen": [["", 29500, 1]], "reach": [["node2", "10.0.0.2", 40123]],
                     "seconds": 6}'

``listen`` has an address ("" for all), a port and how many others will connect to it; ``reach``
has a name for the answer, an address or host name, and a port. Prints one line of JSON: of each
port that cannot be listened on why, and of each other host "" or why it was not reached. It
listens until all have come, or until the seconds are over. Through each connection go 64 KiB, which
are answered.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

AGAIN_SECONDS = 0.1
MOST_THREADS = 64
LARGE = b"x" * (64 << 10)


def listener(address: str, port: int) -> socket.socket:
    """A socket that listens; on all addresses IPv6 and IPv4, as torch's store does."""
    both = not address and socket.has_ipv6
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if both:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind((address, port))
    made.listen(128)
    return made


def welcome(listening: socket.socket, expected: int, deadline: float) -> None:
    """Accept as many connections as are expected, until the deadline."""
    takers = []
    with contextlib.suppress(OSError):  # no further connection came in time
        while expected > 0 and time.monotonic() < deadline:
            listening.settimeout(max(0.01, deadline - time.monotonic()))
            came, _ = listening.accept()
            takers.append(threading.Thread(target=take, args=(came, deadline)))
            takers[-1].start()
            expected -= 1
    for taker in takers:
        taker.join()


def take(came: socket.socket, deadline: float) -> None:
    """Read what is sent, and answer."""
    left = len(LARGE)
    with contextlib.suppress(OSError), contextlib.closing(came):
        came.settimeout(max(0.1, deadline - time.monotonic()))
        while left > 0:
            data = came.recv(left)
            if not data:
                return
            left -= len(data)
        came.sendall(b"k")


def reach(address: str, port: int, deadline: float) -> str:
    """Why a port is not reached, "" where it is. One that refuses may not listen yet."""
    why = "no time"
    while time.monotonic() < deadline:
        connected = False
        try:
            left = max(0.1, deadline - time.monotonic())
            with socket.create_connection((address, port), left) as line:
                connected = True
                line.sendall(LARGE)
                return "" if line.recv(1) == b"k" else "it hung up"
        except socket.timeout:  # noqa: UP041 - Python 3.7 has another name for it
            return "64 KiB do not get through" if connected else "no answer"
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            time.sleep(AGAIN_SECONDS)
    return why


def main() -> None:
    """Listen and connect at the same time, and say what came of it."""
    asked = json.loads(sys.argv[1])
    deadline = time.monotonic() + asked["seconds"]
    told: dict[str, dict[str, str]] = {"closed": {}, "reached": {}}
    threads = []
    for address, port, expected in asked["listen"]:
        try:
            made = listener(address, port)
        except OSError as error:
            told["closed"][str(port)] = error.strerror or str(error)
            continue
        # A connection is made by the kernel: it is answered even after ours have all come.
        threads.append(threading.Thread(target=welcome, args=(made, expected, deadline)))
        threads[-1].start()
    with ThreadPoolExecutor(MOST_THREADS) as calling:
        calls = {
            name: calling.submit(reach, address, port, deadline - 0.5)
            for name, address, port in asked["reach"]
        }
    told["reached"] = {name: call.result() for name, call in calls.items()}
    for thread in threads:
        thread.join()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
