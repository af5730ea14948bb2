"""A free TCP port, where the ranks of a job meet. Standard library alone, as its supervisor is."""

from __future__ import annotations

import socket


def held_port() -> socket.socket:
    """A socket bound to a free port, and not listening: nobody else is given that port.

    Rank 0 can still listen on it, since both set SO_REUSEADDR (socket(7)).
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    return holder
