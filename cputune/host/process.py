"""Variables and working folder of this process, and the secrets of a command."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping, Sequence

from cputune.text.hidden import hide_arguments


def variables() -> Mapping[str, str]:
    """The variables of this process, as they are now."""
    return os.environ


def folder() -> str:
    """The folder that this process works in."""
    return os.getcwd()


def absolute(path: str) -> str:
    """A path from the root, with the folder of this process before it if it has none."""
    return os.path.abspath(path)


def in_home(path: str) -> str:
    """A path with the user's home in place of ``~``."""
    return os.path.expanduser(path)


def cpu_count() -> int:
    """The CPUs of this machine that are online."""
    return os.cpu_count() or 1


def machine_name() -> str:
    return socket.gethostname()


def keep_secrets(argv: Sequence[str], *, secret: Collection[str] = ()) -> None:
    """Store the secrets of a command in variables, from which its trials read them, by the names
    of ``Workload.script``.
    """
    _, secrets = hide_arguments(argv, secret=secret, variables=os.environ)
    os.environ.update(secrets)
