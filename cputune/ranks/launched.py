"""Run launches as they are and listen to their ranks; nothing of them is left afterwards.

The ranks are made to report by environment variables alone (``cputune.inside``): a directory
that comes first on PYTHONPATH, and a socket. The artefact is not edited.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cputune.host import Command, end_group
from cputune.inside import SCRATCH_VARIABLE, SOCKET_VARIABLE, site_directory
from cputune.ranks.listen import Post
from cputune.ranks.marked import end_marked, guard

GRACE_SECONDS = 3.0
TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """One optimizer step as one rank saw it."""

    seconds: float
    samples: int
    loss: float | None = None
    delayed_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What one rank has told. ``state`` is None where it never came to its first step."""

    number: int
    state: Mapping[str, Any] | None = None
    steps: tuple[RankStep, ...] = ()
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """How a launch went.

    ``returncode`` is the first that was not 0, else 0; None where it had to be ended:
    after the last step that was asked for (``enough``), or at its time limit.
    """

    ranks: tuple[Rank, ...]
    returncode: int | None
    enough: bool
    timed_out: bool
    seconds: float
    output: str


@dataclass(slots=True)
class _Heard:
    state: Mapping[str, Any] | None = None
    steps: list[RankStep] = field(default_factory=list)
    trouble: str | None = None
    ended: bool = False


def observe(
    commands: Sequence[Command],
    *,
    ranks: int,
    steps: int,
    timeout_seconds: float,
    logs: Sequence[Path] = (),
) -> Launched:
    """Start the commands together and listen until every rank has made its steps.

    ``ranks`` are awaited in all; a launch that starts fewer is listened to until it ends
    by itself, or until the time is up. ``logs`` are further files that hold its output.
    Raises OSError where a command cannot be started.
    """
    heard: dict[int, _Heard] = {}
    started = time.monotonic()
    deadline = started + timeout_seconds
    with (
        tempfile.TemporaryDirectory(prefix="cputune-verify-") as directory,
        contextlib.closing(Post(directory)) as post,
        guard(SOCKET_VARIABLE, post.path, directory),
        _started(commands, directory, post) as children,
    ):
        running = set(range(len(children)))
        enough = False
        while running and not enough and time.monotonic() < deadline:
            for source, event in post.wait(max(0.0, deadline - time.monotonic())):
                if isinstance(source, _Exit):
                    running.discard(source.index)
                elif event is not None and source is not None:
                    _hear(heard.setdefault(source, _Heard()), event)
            enough = _made(heard, steps) >= ranks
        if not running:
            _drain(post, heard)
        codes = [None if i in running else child.poll() for i, child in enumerate(children)]
        for child in children:
            end_group(child)
        end_marked(SOCKET_VARIABLE, post.path)
        output = _tail([*sorted(Path(directory).glob("output-*")), *logs])
    return Launched(
        ranks=tuple(
            Rank(number=n, state=h.state, steps=tuple(h.steps), trouble=h.trouble)
            for n, h in sorted(heard.items())
        ),
        returncode=None if None in codes else next((code for code in codes if code), 0),
        enough=enough,
        timed_out=bool(running) and not enough,
        seconds=time.monotonic() - started,
        output=output,
    )


@dataclass(frozen=True, slots=True)
class _Exit:
    index: int


@contextlib.contextmanager
def _started(
    commands: Sequence[Command], directory: str, post: Post
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The commands as children, each with its own group; their exits are heard by the post."""
    children: list[subprocess.Popen[bytes]] = []
    waiters: list[threading.Thread] = []
    ends: list[socket.socket] = []
    outputs: list[IO[bytes]] = []
    scratch = Path(directory) / "scratch"
    scratch.mkdir()
    try:
        for index, command in enumerate(commands):
            output: IO[bytes] = (Path(directory) / f"output-{index}").open("wb")
            outputs.append(output)
            child = subprocess.Popen(
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=reporting(command.environment or os.environ, post.path, str(scratch)),
                cwd=command.cwd,
                start_new_session=True,
            )
            children.append(child)
            ours, theirs = socket.socketpair()
            ends.append(ours)
            post.add(ours, _Exit(index))
            waiter = threading.Thread(target=_wait, args=(child, theirs), daemon=True)
            waiters.append(waiter)
            waiter.start()
        yield children
    finally:
        for child in children:
            end_group(child)
        end_marked(SOCKET_VARIABLE, post.path)
        for waiter in waiters:
            waiter.join(GRACE_SECONDS)
        for end in ends:
            post.remove(end)
            end.close()
        for output in outputs:
            output.close()


def _wait(child: subprocess.Popen[bytes], end: socket.socket) -> None:
    with end:
        child.wait()


def reporting(environment: Mapping[str, str], path: str, scratch: str) -> dict[str, str]:
    """An environment in which every Python process that trains reports to the socket."""
    variables = dict(environment)
    variables[SOCKET_VARIABLE] = path
    variables[SCRATCH_VARIABLE] = scratch
    others = variables.get("PYTHONPATH")
    site = str(site_directory())
    variables["PYTHONPATH"] = f"{site}:{others}" if others else site
    return variables


def _hear(rank: _Heard, event: Mapping[str, Any]) -> None:
    match event.get("event"):
        case "state":
            rank.state = {k: v for k, v in event.items() if k != "event"}
        case "step":
            rank.steps.append(
                RankStep(
                    seconds=float(event["seconds"]),
                    samples=int(event["samples"]),
                    loss=event.get("loss"),
                    delayed_seconds=float(event.get("delayed") or 0.0),
                )
            )
        case "refused":
            rank.trouble = str(event.get("reason"))
        case "error":
            rank.trouble = f"{event.get('kind')}: {event.get('text')}"
        case "end":
            rank.ended = True


def _made(heard: Mapping[int, _Heard], steps: int) -> int:
    return sum(len(rank.steps) >= steps for rank in heard.values())


def _drain(post: Post, heard: dict[int, _Heard]) -> None:
    """What the ranks said last, before their launcher ended."""
    while events := post.wait(0.0):
        for source, event in events:
            if event is not None and isinstance(source, int):
                _hear(heard.setdefault(source, _Heard()), event)


def _tail(paths: Sequence[Path]) -> str:
    parts = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            parts.append(file.read().decode("utf-8", errors="replace"))
    return "\n".join(part for part in parts if part.strip())
