"""The same for many hosts, side by side, with a limit of time for each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from cputune.errors import Unreachable
from cputune.nodes.line import OPEN_SECONDS, Line
from cputune.nodes.named import Node
from cputune.nodes.reach import Reach

AT_ONCE = 64
"""So many hosts at a time; each is a process of ours (ssh) and two threads."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard(Generic[Answer]):
    """What came of one host: an answer, or why there is none. ``seconds`` is how long it took."""

    node: Node
    seconds: float
    answer: Answer | None = None
    unreachable: Unreachable | None = None


def on_each(
    nodes: Sequence[Node],
    reach: Reach,
    do: Callable[[Line], Answer],
    seconds: float = OPEN_SECONDS,
    *,
    keep: Lines | None = None,
    pythons: tuple[str, ...] = (),
) -> tuple[Heard[Answer], ...]:
    """``do`` with a line to each node, in their order; a host has ``seconds`` for all of it.

    What ``do`` raises is raised here, but for Unreachable. Each line is closed when its host has
    answered, or held by ``keep``; where this is interrupted, all are closed.
    """
    lines = Lines() if keep is None else keep

    def one(node: Node) -> Heard[Answer]:
        started = time.monotonic()
        line = lines.add(Line(reach, node, pythons))
        try:
            line.greet(seconds)
            line.until_seconds = started + seconds
            answer = do(line)
            line.until_seconds = float("inf")
        except Unreachable as error:
            lines.close(line)
            return Heard(node=node, seconds=time.monotonic() - started, unreachable=error)
        except BaseException:
            lines.close(line)
            raise
        if keep is None:
            lines.close(line)
        return Heard(node=node, seconds=time.monotonic() - started, answer=answer)

    pool = ThreadPoolExecutor(max_workers=max(1, min(AT_ONCE, len(nodes))))
    try:
        return tuple(pool.map(one, nodes))
    except BaseException:
        lines.close_all()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Lines:
    """The lines that are open, so that none is forgotten: ``with Lines() as lines:``."""

    def __init__(self) -> None:
        self._open: dict[int, Line] = {}
        self._over = False
        self._guard = threading.Lock()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_all()

    def __iter__(self) -> Iterator[Line]:
        """Those that are open now, in the order in which they were opened."""
        with self._guard:
            return iter(tuple(self._open.values()))

    def to(self, node: Node) -> Line | None:
        """The one to this host; None where it was lost or never there."""
        return next((line for line in self if line.node.name == node.name), None)

    def add(self, line: Line) -> Line:
        """Hold a line. After ``close_all`` it is closed at once."""
        with self._guard:
            self._open[id(line)] = line
            over = self._over
        if over:
            self.close(line)
        return line

    def close(self, line: Line) -> None:
        """Close one, and hold it no more."""
        line.close()
        with self._guard:
            self._open.pop(id(line), None)

    def close_all(self) -> None:
        """Close all, side by side: each takes as long as its host needs to end what runs there."""
        with self._guard:
            self._over = True
        lines = tuple(self)
        if lines:
            with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(lines))) as pool:
                list(pool.map(self.close, lines))
