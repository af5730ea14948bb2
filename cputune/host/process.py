"""Variables and working folder of this process, and the secrets of a command."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping, Sequence

from cputune.text.hidden import hide_arguments


def variables() -> Mapping[str, str]:
    return os.environ


def folder() -> str:
    return os.getcwd()


def absolute(path: str) -> str:
    return os.path.abspath(path)


def in_home(path: str) -> str:
    return os.path.expanduser(path)


def cpu_count() -> int:
    return os.cpu_count() or 1


def machine_name() -> str:
    return socket.gethostname()


def keep_secrets(argv: Sequence[str], *, secret: Collection[str] = ()) -> None:
    """Store the secrets of a command in variables, from which its trials read them, by the names
    of ``Workload.script``.
    """
    _, found = hide_arguments(argv, secret=secret, variables=os.environ)
    os.environ.update(found)
