"""Asks other hosts: a script goes over standard input, one line of JSON comes back.

The way to a host (``cputune.host.remote.reach``) starts a Python there. It reads the script,
answers and ends; nothing listens or stays on the host. Many hosts are asked at once, with a limit
of time for each. For a host that has not answered by then, the way to it is ended here, and an
alarm (alarm(2)) ends the script there.
"""

from __future__ import annotations

import base64
import bz2
import contextlib
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, TypeVar

from cputune.errors import CannotError, HostError, Unreachable
from cputune.host.children import end, in_session
from cputune.host.remote.named import Node
from cputune.host.remote.reach import NO_PYTHON, OLDEST_PYTHON, TOO_OLD, Reach
from cputune.text.log import log

_LOG = log.getChild("remote")

AT_ONCE = 64
"""How many hosts are asked at a time; each is a process of ours (ssh) and a thread."""

ANSWER_SECONDS = 30.0
LATER_SECONDS = 2
"""How many seconds after our own limit the alarm ends the script over there."""

_RUN = (
    "import sys;v=sys.version_info;sys.path[:]=[p for p in sys.path if p];"
    f'v<{OLDEST_PYTHON}and sys.exit("{TOO_OLD} %d.%d"%v[:2]);'
    "import base64,zlib;f=open(0,'rb',0,closefd=False);"
    "d=lambda b:(__import__('bz2')if b[:3]==b'BZh'else zlib).decompress(b).decode();"
    "s,q=[d(base64.b85decode(f.readline()[:-1]))for _ in 'ab'];"
    "sys.argv[1:]=[q];exec(s)"
)
"""The bootstrap: reads two lines, byte by byte; what follows them is for the script. No file of the
folder in which a login begins is taken for a module. It has no character that a shell interprets
between double quotes (csh: ``!``)."""

_CHOOSE = 'for p in "$@";do command -v "$p" >/dev/null 2>&1 && exec "$p" -c "$0";done;exit 127'


Read = TypeVar("Read")
_NO_SENSE = (HostError, OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError)
"""What an answer of another form raises when it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of one host, or why there is none.

    ``began`` and ``ended`` are times of our clock (since 1970).
    """

    node: Node
    content: Mapping[str, Any] | None = None
    unreachable: Unreachable | None = None
    began: float = 0.0
    ended: float = 0.0

    @property
    def seconds(self) -> float:
        """How long the host took."""
        return self.ended - self.began

    def read(self, make: Callable[[Mapping[str, Any]], Read]) -> Read | Answer:
        """What ``make`` makes of the answer; an Answer with the reason where that fails."""
        if self.content is None:
            return self
        try:
            return make(self.content)
        except _NO_SENSE as error:
            said = f"what it answers makes no sense ({type(error).__name__}: {error})"
            return replace(self, content=None, unreachable=Unreachable(self.node.name, said))


def script_text(name: str, package: str = "cputune.host.remote.sent") -> str:
    """The text of a script that is sent."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def far_command(pythons: Sequence[str] = ()) -> tuple[str, ...]:
    """The command that waits for a script on its standard input.

    The first of ``pythons`` that is there runs it: without any this very Python's path, which is
    the one that trains where hosts are alike, else ``python3``.
    """
    return ("sh", "-c", _CHOOSE, _RUN, *(pythons or (sys.executable, "python3")))


def sent_lines(script: str, question: object) -> bytes:
    """A script and its question as the two lines that ``far_command`` reads.

    MPICH's hydra fails where a program leaves more of them unread than a pipe holds (64 KiB).
    """
    texts = (script, json.dumps(question))
    return b"".join(base64.b85encode(_packed(text.encode())) + b"\n" for text in texts)


LONG_BYTES = 32_000
"""Lines up to this length are packed by zlib, which every Python has; longer ones by bz2, a sixth
shorter."""


def _packed(text: bytes) -> bytes:
    packed = zlib.compress(text, 9)
    return packed if len(packed) < LONG_BYTES else bz2.compress(text)


def ask_each(
    nodes: Sequence[Node],
    reach: Reach,
    script: str,
    question: Callable[[Node], Mapping[str, Any]],
    seconds: float = ANSWER_SECONDS,
    *,
    pythons: Callable[[Node], Sequence[str]] = lambda node: (),
    on_answer: Callable[[Answer], None] = lambda answer: None,
) -> tuple[Answer, ...]:
    """The answers of all, in the order of the nodes; each host has ``seconds`` for it.

    ``on_answer`` is called with each as it comes, from several threads. Raises CannotError where
    the way cannot be started here at all.
    """
    body = f"import signal\nsignal.alarm({int(seconds) + LATER_SECONDS})\nexec({script!r})"

    def one(node: Node) -> Answer:
        wanted = pythons(node)
        answer = _asked(node, reach, far_command(wanted), sent_lines(body, question(node)), seconds)
        if wanted and answer.unreachable and answer.unreachable.reason == NO_PYTHON:
            hint = "--python names one that lies at the same path on every host"
            error = Unreachable(node.name, f"there is no {wanted[0]}", hint=hint)
            answer = replace(answer, unreachable=error)
        on_answer(answer)
        return answer

    with ThreadPoolExecutor(max_workers=max(1, min(AT_ONCE, len(nodes)))) as pool:
        return tuple(pool.map(one, nodes))


def _asked(node: Node, reach: Reach, command: Sequence[str], said: bytes, seconds: float) -> Answer:
    began, argv = time.time(), reach.argv(node, command)
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **reach.variables},
            start_new_session=True,  # no Ctrl-C, no password prompt
        )
    except OSError as error:
        what = f"cannot start {argv[0]}: {error.strerror or error}"
        raise CannotError(what, hint="--through names another way to hosts") from error
    late = False
    try:
        out, err = process.communicate(said, timeout=seconds)
    except subprocess.TimeoutExpired:
        late = True
        out, err = _ended(process)
    except BaseException:
        _ended(process)
        raise
    answer = Answer(node=node, content=last_object(out), began=began, ended=time.time())
    if answer.content is not None:
        _LOG.debug("%s answered by %s in %.1f s", node.name, reach.name, answer.seconds)
        return answer
    words, noise = err.decode(errors="replace"), out.decode(errors="replace")[:60].strip()
    if late:
        last = [line.strip()[:200] for line in words.splitlines() if line.strip()][-1:]
        reason = ": ".join((f"it gave no answer in {seconds:.3g} s", *last))
        hint: str | None = "is it up, and does a firewall stand between?"
    elif process.returncode == 0:
        reason = f"its answer is not readable: {noise!r}" if noise else "its answer is not readable"
        hint = f"{reach.name} {node.name} true should print nothing"
    else:
        reason, hint = reach.explain(node, process.returncode, words)
    _LOG.info("%s gave no answer: %s", node.name, reason)
    return replace(answer, unreachable=Unreachable(node.name, reason, hint=hint))


def _ended(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """End the way to a host and what it has started here; returns what it has written."""
    end(lambda: in_session(process.pid), grace_seconds=0)
    with contextlib.suppress(ValueError, OSError):
        return process.communicate(timeout=1)
    return b"", b""


def last_object(said: bytes) -> dict[str, Any] | None:
    """The last line that is a JSON object; a login shell may have written anything before it."""
    for line in reversed(said.decode("utf-8", "replace").splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                answer = json.loads(line)
                if isinstance(answer, dict):
                    return answer
    return None
