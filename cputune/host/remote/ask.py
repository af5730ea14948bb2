"""Asks other hosts: sends a script over standard input, and reads one line of JSON.

The command of ``cputune.host.remote.reach`` starts a Python on the host. It reads the script,
answers and ends: nothing listens or stays there. Many hosts are asked at once, with a time limit
for each. After it, the command is ended here, and an alarm (alarm(2)) ends the script there.
"""

from __future__ import annotations

import base64
import bz2
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
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

# Hosts that are asked at the same time. Each needs a process (ssh) and a thread.
AT_ONCE = 64

ANSWER_SECONDS = 30.0  # for the answer of a host
# Seconds after our own limit at which the alarm ends the script on the host.
LATER_SECONDS = 2

# The bootstrap: it reads two lines, byte by byte, and leaves the rest of the input to the script.
# It does not import modules from the folder of the login. It has no character that a shell
# interprets between double quotes (csh: ``!``).
_RUN = (
    "import sys;v=sys.version_info;sys.path[:]=[p for p in sys.path if p];"
    f'v<{OLDEST_PYTHON}and sys.exit("{TOO_OLD} %d.%d"%v[:2]);'
    "import base64,zlib;f=open(0,'rb',0,closefd=False);"
    "d=lambda b:(__import__('bz2')if b[:3]==b'BZh'else zlib).decompress(b).decode();"
    "s,q=[d(base64.b85decode(f.readline()[:-1]))for _ in 'ab'];"
    "sys.argv[1:]=[q];exec(s)"
)

_CHOOSE = 'for p in "$@";do command -v "$p" >/dev/null 2>&1 && exec "$p" -c "$0";done;exit 127'


Read = TypeVar("Read")
# What reading an answer in an unexpected form may raise.
_NO_SENSE = (HostError, OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of one host, or the reason why the host did not answer.

    ``began`` and ``ended`` are times of our clock, in seconds since 1970.
    """

    node: Node
    content: Mapping[str, Any] | None = None
    unreachable: Unreachable | None = None
    began: float = 0.0
    ended: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def read(self, make: Callable[[Mapping[str, Any]], Read]) -> Read | Answer:
        """Convert the answer with ``make``. If that fails, return an Answer with the reason."""
        if self.content is None:
            return self
        try:
            return make(self.content)
        except _NO_SENSE as error:
            reason = f"its answer cannot be used ({type(error).__name__}: {error})"
            failed = Unreachable(self.node.name, reason, True)
            return replace(self, content=None, unreachable=failed)


def script_text(name: str, package: str = "cputune.host.remote.sent") -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def far_command(pythons: Sequence[str] = ()) -> tuple[str, ...]:
    """The command that waits for a script on its standard input.

    The first existing one of ``pythons`` runs it. The default is the path of this Python, which
    trains if the hosts are alike, or else ``python3``.
    """
    return ("sh", "-c", _CHOOSE, _RUN) + tuple(pythons or (sys.executable, "python3"))


def sent_lines(script: str, question: object) -> bytes:
    """Encode a script and its question as the two lines that ``far_command`` reads.

    MPICH's hydra fails if a program leaves more unread than a pipe can buffer (64 KiB).
    """
    texts = (script, json.dumps(question))
    return b"".join(base64.b85encode(_packed(text.encode())) + b"\n" for text in texts)


# Lines up to this length are compressed by zlib, which every Python has. For longer ones bz2 saves
# a sixth.
LONG_BYTES = 32_000


def _packed(text: bytes) -> bytes:
    packed = zlib.compress(text, 9)
    if len(packed) < LONG_BYTES:
        return packed
    return bz2.compress(text)


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
    """Ask all nodes, and return their answers in the order of the nodes. Each has ``seconds``.

    ``on_answer`` is called with each answer as it arrives, from several threads. Raises CannotError
    if the command cannot be started here.
    """
    # If the connection is lost, nothing but the alarm ends the script on its host.
    body = f"import signal\nsignal.alarm({int(seconds) + LATER_SECONDS})\nexec({script!r})"

    def one(node: Node) -> Answer:
        wanted = pythons(node)
        answer = _answer_of(
            node, reach, far_command(wanted), sent_lines(body, question(node)), seconds
        )
        if wanted and answer.unreachable and answer.unreachable.reason == NO_PYTHON:
            hint = "--python takes the path of a Python that exists on every host"
            error = Unreachable(node.name, f"there is no {wanted[0]}", True, hint=hint)
            answer = replace(answer, unreachable=error)
        on_answer(answer)
        return answer

    with ThreadPoolExecutor(max_workers=max(1, min(AT_ONCE, len(nodes)))) as pool:
        return tuple(pool.map(one, nodes))


# The key in the line that a script prints before it waits for the other hosts.
READY = "ready"


def ask_together(
    nodes: Sequence[Node],
    reach: Reach,
    script: str,
    question: Callable[[Node], Mapping[str, Any]],
    *,
    start_seconds: float,
    work_seconds: float,
    pythons: Sequence[str] = (),
) -> tuple[Answer, ...]:
    """Ask all nodes. None begins its work before every other one is ready for it.

    The script prints an object with the key ``ready`` and then reads a line of its standard input:
    an object whose ``absent`` names the hosts that were not ready within ``start_seconds``. From
    then on it has ``work_seconds``. A slow login so takes no time from the others.
    """
    most = int(start_seconds + work_seconds) + LATER_SECONDS
    body = f"import signal\nsignal.alarm({most})\nexec({script!r})"
    barrier = _Barrier(len(nodes))

    def one(node: Node) -> Answer:
        came = False
        try:
            # Nothing reads a pipe of stderr while we wait for stdout, and a full one would block.
            with tempfile.TemporaryFile() as stderr:
                began, late = time.time(), None
                with _started(node, reach, far_command(pythons), stderr=stderr.fileno()) as process:
                    try:
                        sent = sent_lines(body, question(node))
                        out = _first_answer(process, sent, start_seconds)
                        is_ready = READY in (last_object(out or b"") or {})
                        came, absent = True, barrier.wait(None if is_ready else node.name)
                        if is_ready:
                            go = json.dumps({"absent": absent}).encode() + b"\n"
                            out, _ = process.communicate(go, timeout=work_seconds + LATER_SECONDS)
                        elif out is None:
                            late = start_seconds
                    except subprocess.TimeoutExpired:
                        late = work_seconds
                        out = None
                    finally:
                        if process.returncode is None:
                            end(lambda: in_session(process.pid), grace_seconds=0)
                stderr.seek(0)
                written = stderr.read().decode(errors="replace")
            content = last_object(out or b"")
            answer = Answer(node=node, content=content, began=began, ended=time.time())
            return _explained(answer, reach, process.returncode, out or b"", written, late)
        finally:
            if not came:  # the others must not wait for a thread that failed
                barrier.leave(node.name)

    with ThreadPoolExecutor(max_workers=max(1, len(nodes))) as pool:
        return tuple(pool.map(one, nodes))


class _Barrier:
    """Holds threads until each of ``count`` waits here or has left."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._absent: list[str] = []
        self._changed = threading.Condition()

    def wait(self, absent: str | None) -> list[str]:
        """Wait for the others; gives the names of those that are absent, this one if named."""
        with self._changed:
            self._arrive(absent)
            self._changed.wait_for(lambda: self._missing == 0)
            return list(self._absent)

    def leave(self, name: str) -> None:
        """Do not wait, and be absent."""
        with self._changed:
            self._arrive(name)

    def _arrive(self, absent: str | None) -> None:
        self._missing -= 1
        if absent is not None:
            self._absent.append(absent)
        self._changed.notify_all()


def _first_answer(process: subprocess.Popen[bytes], sent: bytes, seconds: float) -> bytes | None:
    """What a command writes up to its first answer, or to its end. None if it takes longer."""
    assert process.stdin is not None
    assert process.stdout is not None
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        end(lambda: in_session(process.pid), grace_seconds=0)

    limit = threading.Timer(seconds, give_up)
    limit.start()
    out = b""
    try:
        # communicate() would close stdin, from which the script reads another line later.
        with contextlib.suppress(BrokenPipeError):  # it has ended
            while sent:
                sent = sent[os.write(process.stdin.fileno(), sent) :]
        for line in process.stdout:
            out += line
            if last_object(line) is not None:
                break
    finally:
        limit.cancel()
    return None if is_late.is_set() else out


def _started(
    node: Node, reach: Reach, command: Sequence[str], *, stderr: int
) -> subprocess.Popen[bytes]:
    """Start the command that leads to a host. Raises CannotError if it is not there."""
    argv = reach.argv(node, command)
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=os.environ | dict(reach.variables),
            bufsize=0,
            start_new_session=True,  # no Ctrl-C, no password prompt
        )
    except OSError as error:
        problem = f"cannot start {argv[0]}: {error.strerror or error}"
        raise CannotError(problem, hint="choose another way to reach hosts: --through") from error


def _answer_of(
    node: Node, reach: Reach, command: Sequence[str], sent: bytes, seconds: float
) -> Answer:
    began = time.time()
    process = _started(node, reach, command, stderr=subprocess.PIPE)
    late = None
    try:
        out, err = process.communicate(sent, timeout=seconds)
    except subprocess.TimeoutExpired:
        late = seconds
        out, err = _ended(process)
    except BaseException:
        _ended(process)
        raise
    answer = Answer(node=node, content=last_object(out), began=began, ended=time.time())
    stderr = err.decode(errors="replace")
    return _explained(answer, reach, process.returncode, out, stderr, late)


def _explained(
    answer: Answer, reach: Reach, code: int | None, out: bytes, stderr: str, late: float | None
) -> Answer:
    """The answer, or why it is missing. ``late``: the time limit that the host exceeded."""
    name = answer.node.name
    if answer.content is not None:
        _LOG.debug("%s answered by %s in %.1f s", name, reach.name, answer.seconds)
        return answer
    hint: str | None
    if late is not None:
        reason = f"it gave no answer in {late:.3g} s"
        lines = [line.strip()[:200] for line in stderr.splitlines() if line.strip()]
        if lines:
            reason += f": {lines[-1]}"
        hint = "check that it is up, and that no firewall blocks the connection"
    elif code == 0:
        reason = "its answer is not readable"
        noise = out.decode(errors="replace")[:60].strip()
        if noise:
            reason += f": {noise!r}"
        hint = f"{reach.name} {answer.node.login} true should print nothing"
    else:
        reason, hint = reach.explain(answer.node, code, stderr)
    _LOG.info("%s gave no answer: %s", name, reason)
    started = late is None and (code == 0 or reach.has_started(code, stderr))
    if started and hint is None:
        hint = f"{reach.name} {answer.node.login} python3 -V shows whether a Python starts there"
    return replace(answer, unreachable=Unreachable(name, reason, started, hint=hint))


def _ended(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """End the command and its children, and return what it has written."""
    end(lambda: in_session(process.pid), grace_seconds=0)
    with contextlib.suppress(ValueError, OSError):
        return process.communicate(timeout=1)
    return b"", b""


def last_object(output: bytes) -> dict[str, Any] | None:
    """The last line that is a JSON object. A login shell may have written other lines before."""
    for line in reversed(output.decode("utf-8", "replace").splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                answer = json.loads(line)
                if isinstance(answer, dict):
                    return answer
    return None
