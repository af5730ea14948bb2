"""What the tuner and a supervisor of ranks say to each other: JSON objects, one a line.

Standard library alone: a supervisor loads this, and forked ranks inherit what it has loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict


class RankCommand(TypedDict):
    """How one rank, or one launcher, is started.

    ``input`` is written to its standard input, which stays open until it is to end; None: no input.

    ``cpus`` are those that it is bound to, None leaves it unbound. With ``fork`` it is a
    fork of the supervisor, which has imported the training stack; ``argv`` is then the
    script with its arguments.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    cpus: list[int] | None
    fork: bool
    input: str | None


def command(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    cwd: str | None = None,
    cpus: Sequence[int] | None = None,
    fork: bool = False,
    input: str | None = None,
) -> RankCommand:
    """How one rank, or one launcher, is started: here, unless ``cwd`` says another folder."""
    return {
        "argv": list(argv),
        "env": dict(environment),
        "cwd": cwd or os.getcwd(),
        "cpus": None if cpus is None else list(cpus),
        "fork": fork,
        "input": input,
    }


class Request(TypedDict, total=False):
    """What a supervisor is asked to do, once each.

    ``start`` these ``commands``, numbered from 0. ``mark`` is a variable with its value by which
    processes are found that a launcher has started elsewhere (slurmd); None where everything is
    below the supervisor. ``fork``: make a copy of the supervisor, which speaks on the descriptor
    sent with this (SCM_RIGHTS). ``end`` everything that was started, and yourself; 0 seconds of
    grace kill at once. One whose line is cut without it takes the tuner for killed.
    """

    do: Literal["start", "fork", "end"]
    commands: list[RankCommand]
    mark: tuple[str, str] | None
    grace_seconds: float


class Ready(TypedDict):
    """The modules are imported; ``threads`` names those beside the main one that bar a fork."""

    event: Literal["ready"]
    pid: int
    threads: list[str]


class Exit(TypedDict):
    """One that was started has ended; ``tail`` is what it wrote last."""

    event: Literal["exit"]
    rank: int
    status: int
    tail: str


class Gone(TypedDict):
    """Nothing is left; ``tails`` hold what each wrote last, by its number."""

    event: Literal["gone"]
    tails: dict[str, str]


Answer = Ready | Exit | Gone
