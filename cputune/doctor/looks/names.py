"""What names stand for on this host: its own, and those of the others. Python 3.7 is enough.

    python names.py '{"names": ["node1", "node2"]}'

Prints one line of JSON. ``own`` is what gloo listens on by itself: the first address of the
host's own name that can be bound (``ProcessGroupGloo::createDefaultDevice`` of torch).
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys


def addresses(name: str) -> list[str] | str:
    """The addresses of a name; why there are none, as a text."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def can_bind(address: str) -> bool:
    """Whether the address is this host's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        try:
            tried.bind((address, 0))
        except OSError:
            return False
    return True


def mtu() -> dict[str, int]:
    """The largest packet that each interface says it carries, in bytes."""
    found = {}
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError, ValueError), open(f"/sys/class/net/{name}/mtu") as file:
            found[name] = int(file.read())
    return found


def main() -> None:
    """Answer what is asked for."""
    asked = json.loads(sys.argv[1])
    told = addresses(socket.gethostname())
    own = next((one for one in told if can_bind(one)), None) if isinstance(told, list) else None
    names = {name: addresses(name) for name in asked["names"]}
    print(json.dumps({"own": own, "names": names, "mtu": mtu()}))


if __name__ == "__main__":
    main()
