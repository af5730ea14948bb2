"""A supervisor ends when the tuner has gone, also while it still imports the training stack."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from select import POLLHUP, POLLIN, POLLRDHUP, poll


@contextlib.contextmanager
def ended_with_the_tuner(control: socket.socket, work: Sequence[str]) -> Iterator[None]:
    """While modules are imported, a thread ends this process where the tuner goes away.

    The thread is gone when the block is over: ranks can only be forked without threads.
    """
    stop_read, stop_write = os.pipe2(os.O_CLOEXEC)

    def watch() -> None:
        waiting = poll()
        waiting.register(control, POLLRDHUP | POLLHUP)
        waiting.register(stop_read, POLLIN)
        if any(descriptor == control.fileno() for descriptor, _ in waiting.poll()):
            leave(work, goodbye=_said_goodbye(control))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    yield
    os.write(stop_write, b"x")
    watcher.join()
    os.close(stop_read)
    os.close(stop_write)


def _said_goodbye(control: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        return bool(control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return False


def is_gone(control: socket.socket) -> bool:
    """Whether the tuner has closed its end."""
    look = poll()
    look.register(control, POLLRDHUP | POLLHUP)
    return bool(look.poll(0))


def leave(work: Sequence[str], *, goodbye: bool) -> None:
    """End this process; a tuner that has not said goodbye was killed, so its files go too."""
    if not goodbye:
        for directory in work:
            shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)
