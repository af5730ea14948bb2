"""The ranks of several hosts meet before any of them trains: all go on, or none does.

rank.py calls this. Without it a rank that cannot run here would end alone, and under some
launchers the ranks of the other hosts wait for it for ever. The first member listens at
MASTER_ADDR:MASTER_PORT, where training will listen after it; each other one tells it what is
wrong, if anything is, and hears what is wrong with any of them. Nobody waits without a limit,
whatever becomes of the network. It needs Python 3.8 and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time

TELL_SECONDS = 10.0
"""So long the first member is looked for by one that cannot run; its own launcher waits."""

GATHER_SECONDS = 2.0
"""Once something is wrong, so long is waited for what others have to say."""

SPEAK_SECONDS = 5.0
RETRY_SECONDS = 0.3
LONGEST_LINE = 16384
NETWORK = "look whether that name is found from every host, and the port is open between them"


class Trouble(Exception):  # noqa: N818 - it may be another member's
    """Why no member goes on, what to do about it, and whether the first member has said so."""

    def __init__(self, reason: str, hint: str, *, said: bool) -> None:
        super().__init__(reason)
        self.reason, self.hint, self.said = reason, hint, said


def meet(
    number: int,
    members: int,
    address: str,
    port: int,
    seconds: float,
    problem: tuple[str, str] | None = None,
) -> None:
    """Return where all members have come and nothing is wrong; else raise Trouble.

    ``number`` is that of this member, from 0; the first one listens. ``problem`` is what is
    wrong with this one, and what to do about it; None: nothing.
    """
    found = _here(*problem) if problem else None
    if number == 0:
        _lead(members, address, port, seconds, found)
    else:
        _follow(number, address, port, seconds, found)


def _here(reason: str, hint: str) -> list[str]:
    """A problem with the name of this host."""
    return [f"{socket.gethostname()}: {reason}", hint]


def _lead(members: int, address: str, port: int, seconds: float, problem: list[str] | None) -> None:
    """Hear all, or as many as come in time; say what is wrong; then tell all of them."""
    problems = {0: problem} if problem else {}
    try:
        server = _listening(port, members)
    except OSError as error:
        what = f"port {port} cannot be listened on: {error.strerror}"
        reason, hint = problem or _here(what, "end what holds the port, or take another one")
        raise Trouble(reason, hint, said=False) from error
    came: dict[int, socket.socket] = {}
    with server:
        end = time.monotonic() + (GATHER_SECONDS if problems else seconds)
        while len(came) + 1 < members and time.monotonic() < end:
            server.settimeout(max(0.01, end - time.monotonic()))
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                number, problem = _hear(connection)
                if number in came or not 0 < number < members:
                    connection.close()
                    continue
                came[number] = connection
                if problem:
                    end = min(end, time.monotonic() + GATHER_SECONDS)
                    problems[number] = problem
        missing = [str(number) for number in range(1, members) if number not in came]
        if missing and not problems:
            what = f"member {', '.join(missing[:8])} of {members} did not come to {address}:{port}"
            problems[0] = _here(f"{what} in {seconds:.0f} s", NETWORK)
        verdict = None
        if problems:
            first, *others = sorted(problems)
            reason, hint = problems[first]
            if others:
                hosts = sorted({problems[number][0].partition(":")[0] for number in others})
                reason += f" (nor can {len(others)} more, of {', '.join(hosts[:8])})"
            verdict = [reason, hint]
            sys.stderr.write(f"error: {reason}\nhint: {hint}\n")
            sys.stderr.flush()
        _answer(came, verdict)
    if verdict:
        raise Trouble(*verdict, said=True)


def _answer(came: dict[int, socket.socket], verdict: list[str] | None) -> None:
    """Tell all, and let them hang up first, so that the port is free at once."""
    text = json.dumps(verdict).encode() + b"\n"
    for connection in came.values():
        with contextlib.suppress(OSError):
            connection.sendall(text)
    for connection in came.values():
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.settimeout(SPEAK_SECONDS)
            connection.recv(1)


def _follow(
    number: int, address: str, port: int, seconds: float, problem: list[str] | None
) -> None:
    """Go to the first member until it answers, or the time is up."""
    end = time.monotonic() + (TELL_SECONDS if problem else seconds)
    said = json.dumps(["cputune", number, problem]).encode() + b"\n"
    while True:
        try:
            with socket.create_connection((address, port), SPEAK_SECONDS) as connection:
                connection.sendall(said)
                connection.settimeout(max(SPEAK_SECONDS, end - time.monotonic()))
                verdict = json.loads(_line(connection))
            if verdict is None:
                return
            reason, hint = map(str, verdict)
            raise Trouble(reason, hint, said=True)
        except OSError as error:
            why = error.strerror or str(error)
        except (ValueError, TypeError, RecursionError):
            why = "it hung up, or is somebody else"
        if time.monotonic() >= end:
            reason, hint = problem or _here(f"nobody to meet at {address}:{port}: {why}", NETWORK)
            raise Trouble(reason, hint, said=False)
        time.sleep(RETRY_SECONDS)


def _hear(connection: socket.socket) -> tuple[int, list[str] | None]:
    """The number of a member, and its problem; -1 where it is somebody else."""
    connection.settimeout(SPEAK_SECONDS)
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        word, number, problem = json.loads(_line(connection))
        if word == "cputune" and isinstance(number, int):
            if problem is None:
                return number, None
            reason, hint = map(str, problem)
            return number, [reason, hint]
    return -1, None


def _line(connection: socket.socket) -> bytes:
    """What is said up to the end of a line, or of the connection."""
    with connection.makefile("rb") as heard:
        return heard.readline(LONGEST_LINE)


def _listening(port: int, members: int) -> socket.socket:
    """A server for both kinds of addresses, where the system has both."""
    try:
        return socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=members, dualstack_ipv6=True
        )
    except (OSError, ValueError):
        return socket.create_server(("", port), backlog=members)
