"""Finds the failure that ended a job in its log. Pure.

The log is split into ``Failure`` records, and one of them decides::

    log = read_failures(text)
    log.decisive.title     # "IndexError: list index out of range"

Rules, in this order:

1. If the kernel killed a process for memory, or a process died of a signal, that is the cause:
  exceptions of other ranks follow from it. SIGTERM and SIGINT come from a launcher or a person, and
  SIGABRT follows an error line, so these decide only if the log shows nothing else.
2. Of one rank, the last exception decides. Of several ranks, the one that failed first decides: the
  one that the launcher names, or else the first in the log.
3. An exception that only reports another one (ChildFailedError, a closed connection,
  KeyboardInterrupt) decides only if there is no other.
4. Then a refused command line, an error line, and the exit status that a launcher reports.

Warnings and prints never decide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cputune.inside.messages import OF_LAUNCHERS
from cputune.text._failure_lines import (
    ROOT_RANK,
    Kind,
    Line,
    begins_something,
    lines_of,
    report_of,
    signal_of,
    warns,
)

MESSAGE_LINES = 40  # of an exception, that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One call of a traceback. ``code`` is the source line in the traceback, or empty."""

    file: str
    line: int
    function: str = ""
    code: str = ""

    @property
    def package(self) -> str:
        """The import name of the package that has the file. Empty for your own files."""
        return package_of(self.file)

    @property
    def module(self) -> str:
        """The dotted name of the module if the file is in an installed package, else empty."""
        path = self.file.replace("\\", "/")
        if "-packages/" in path:
            below = path.rpartition("-packages/")[2]
        elif self.package in ("", "python"):
            return ""
        else:
            below = path.rpartition("/src/")[2]
        return below.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One event in a log that ends a process, or a warning.

    Attributes:
        kind: "memory" is a kill for memory by the kernel or the cluster, "limit" a kill for
            time, "exit" a status that a launcher reports, "launcher" an exception with which a
            launcher reports one.
        name: the type of the exception, or the name of the signal.
        message: the text after the name, of one or more lines.
        line: the number of the line in the log, from 1.
        text: that line without the prefixes of launchers.
        rank: the rank in the line's prefix, or None.
        frames: the calls of the traceback, the outermost first.
        cause: the exception that was being handled, or that this one was raised from.
    """

    kind: Kind
    line: int
    text: str
    name: str = ""
    message: str = ""
    rank: int | None = None
    frames: tuple[Frame, ...] = ()
    cause: Failure | None = None

    @property
    def type_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def title(self) -> str:
        """One line: the type and the first line of the message."""
        first = self.message.strip().split("\n")[0]
        if self.kind in ("exception", "launcher"):
            if first:
                return f"{self.name}: {first}"
            return self.name
        return self.text

    @property
    def whole(self) -> str:
        head, separator = self.name, ": "
        if self.kind not in ("exception", "launcher"):
            head, separator = self.text, "\n"
        if not self.message:
            return head
        return f"{head}{separator}{self.message}"

    @property
    def chain(self) -> tuple[Failure, ...]:
        chain = [self]
        while chain[-1].cause is not None:
            chain.append(chain[-1].cause)
        return tuple(chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLog:
    """All failures of a log in their order, and the versions of packages that it names."""

    failures: tuple[Failure, ...]
    lines: tuple[str, ...]
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def decisive(self) -> Failure | None:
        """The failure that ended the job. None if the log shows no failure."""
        return _decisive(self.failures)


def package_of(path: str) -> str:
    """The import name of the package that a file belongs to.

    "python" for the standard library, empty for files outside of an installation and for pseudo
    files such as ``<string>``.
    """
    path = path.replace("\\", "/")
    installed = re.search(r"/(?:site|dist)-packages/([\w.-]+?)(?:\.py|/|$)", path)
    if installed:
        return installed[1]
    source = re.search(r"/(?:src/)?(transformers|accelerate|datasets|peft|trl)/src/\1/", path)
    if source:
        return source[1]
    if re.search(r"/lib(?:64)?/python3?[\d.]*/[\w/]+\.py$", path) or path.startswith("<frozen "):
        return "python"
    return ""


# --- tracebacks -------------------------------------------------------------------------

_BEGIN = re.compile(r"\s*(?:\+ )?(?:Exception Group )?Traceback \(most recent call last\)")
_BOXED = re.compile(
    r"(?:\w+(?:Error|Exception|Interrupt)\s|─ )\s*Traceback \(most recent call last\)"
)
"""As Jupyter and rich print it."""
_FRAME = re.compile(
    r'\s+(?:\| )?File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?'
)
_CELL = re.compile(r"(?:File )?(?P<file>[~/\w.-]+\.py):(?P<line>\d+),? in (?P<function>[\w.<>]+)")
_INPUT = re.compile(
    r"(?P<file>Cell In *\[\d+\]|<ipython-input-[\w-]+>),? (?:line |in )(?P<line>\d+|<)"
)
_ARROW = re.compile(r"-+> \d+ (?P<code>.*)")
_RAISED = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\[[\w., ]+\])?(?:: (?P<message>.*)|:)?"
)
_EXCEPTION_NAME = re.compile(
    r"\w*(?:Error|Exception|Exit|Interrupt|Timeout|Fault|Failure|NotFound|Exhausted"
    r"|StopIteration|Unpickleable|CalledProcess)\w*"
)
_ALONE = re.compile(
    r"(?:E\s+)?(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]?\w*(?:Error|Exception|Interrupt|SystemExit)"
    r"|(?:[a-z_]\w*\.)+[A-Z]\w*(?:Failed|Timeout|Exhausted|NotFound|Fault|Invalid|Raised))"
    r"(?:: (?P<message>.*)|:)?"
)
_CHAINED = re.compile(
    r"\s*(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception)"
)
_RICH_FRAME = re.compile(r"\s*[│|]\s*(?P<file>[~/][^:\s]+\.py):(?P<line>\d+) in (?P<function>\S+)")


class _Stream:
    """Collects the failures of one rank, line by line."""

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.found: list[Failure] = []
        self.frames: list[Frame] | None = None
        self.message: list[str] | None = None
        self.chained: Failure | None = None

    def take(self, line: Line) -> bool:
        """Read a line. Return whether it belongs to a traceback or to an exception's message."""
        text = line.text
        if _BEGIN.match(text) or _BOXED.search(text):
            self._end_message()
            self.frames = []
            return True
        if _CHAINED.match(text):
            self._end_message()
            if self.found and self.found[-1].kind in ("exception", "launcher"):
                self.chained = self.found.pop()
            return True
        if self.frames is not None:
            return self._in_traceback(line, self.frames)
        if self.message is not None:
            return self._in_message(text)
        return False

    def _in_traceback(self, line: Line, frames: list[Frame]) -> bool:
        text = line.text
        frame = _FRAME.match(text) or _RICH_FRAME.match(text) or _CELL.match(text)
        if frame:
            function = (frame["function"] or "").strip()
            frames.append(Frame(file=frame["file"], line=int(frame["line"]), function=function))
            return True
        cell = _INPUT.match(text)
        if cell:
            number = 0
            if cell["line"].isdigit():
                number = int(cell["line"])
            frames.append(Frame(file=cell["file"], line=number))
            return True
        arrow = _ARROW.match(text)
        if arrow and frames:
            frames[-1] = replace(frames[-1], code=arrow["code"][:300])
            return True
        if not text.strip() or text[0] in " \t│╭╰|+-":
            code = text.strip(" \t│|")
            if frames and not frames[-1].code and code and set(code) - set("^~ ─╰╯"):
                frames[-1] = replace(frames[-1], code=code[:300])
            return True
        raised = _RAISED.fullmatch(text)
        if raised is None:
            return False  # another process wrote this line into the traceback
        if signal_of(text):
            self.frames = None
            return False
        simple = raised["name"].rpartition(".")[2]
        if not _EXCEPTION_NAME.fullmatch(simple) and not (frames and simple[:1].isupper()):
            return False
        self.frames = None
        self._raise(line, raised["name"], raised["message"] or "", tuple(frames))
        return True

    def raise_alone(self, line: Line) -> bool:
        alone = _ALONE.fullmatch(line.text.strip())
        if alone is None or not line.text.strip() or line.text[0] in " \t":
            return False
        self._raise(line, alone["name"], alone["message"] or "", ())
        return True

    def _raise(self, line: Line, name: str, message: str, frames: tuple[Frame, ...]) -> None:
        simple = name.rpartition(".")[2]
        kind: Kind = "exception"
        if simple in OF_LAUNCHERS:
            kind = "launcher"
            signal = signal_of(line.text)
            if signal:  # accelerate: "died with <Signals.SIGKILL: 9>"
                kind, name = "signal", signal
        failure = Failure(
            kind=kind,
            line=line.number,
            text=line.text.strip(),
            name=name,
            message=message,
            rank=self.rank,
            frames=frames,
            cause=self.chained,
        )
        self.chained = None
        self.found.append(failure)
        self.message = [message]

    def _in_message(self, text: str) -> bool:
        assert self.message is not None
        ends = not text.strip() or begins_something(text) or len(self.message) > MESSAGE_LINES
        # torch.compile writes "backend='inductor' raised:" and then the exception on the next line.
        announced = self.message[-1].rstrip().endswith(":")
        if ends or (_ALONE.fullmatch(text) and not announced):
            self._end_message()
            return False
        self.message.append(text)
        return True

    def _end_message(self) -> None:
        if self.message is not None and len(self.message) > 1:
            message = "\n".join(self.message).strip("\n")
            self.found[-1] = replace(self.found[-1], message=message)
        self.message = None


_VERSION_LINE = re.compile(
    r"(?:^|[\s`'\"(-])(torch|transformers|accelerate|datasets|peft|trl)"
    r"(?:==|-|`? version:? |[ ]v?)(\d+\.\d+(?:\.\d+)?)"
    r"|\"(transformers)_version\": \"(\d+\.\d+(?:\.\d+)?)"
)


def read_failures(text: str) -> FailureLog:
    """Find all failures of a log. Line numbers are those of this text."""
    streams: dict[int | None, _Stream] = {}
    others: list[Failure] = []
    all_lines = list(lines_of(text))
    for place, line in enumerate(all_lines):
        stream = streams.setdefault(line.rank, _Stream(line.rank))
        if stream.take(line):
            continue
        following = ""
        if place + 1 < len(all_lines):
            following = all_lines[place + 1].text
        if not warns(line.text) and stream.raise_alone(line):
            continue
        report = report_of(line.text, following)
        if report is not None:
            others.append(
                Failure(
                    kind=report.kind,
                    line=line.number,
                    text=line.text.strip(),
                    name=report.name,
                    message=report.message,
                    rank=line.rank,
                )
            )
    for stream in streams.values():
        stream._end_message()
        if stream.chained is not None:
            stream.found.append(stream.chained)
    failures: list[Failure] = []
    for stream in streams.values():
        failures += stream.found
    failures += others
    failures.sort(key=lambda failure: failure.line)
    versions: dict[str, str] = {}
    for named in _VERSION_LINE.finditer(text):
        versions.setdefault(named[1] or named[3], named[2] or named[4])
    lines = tuple(line.text for line in all_lines if line.text.strip())
    return FailureLog(failures=_with_root_rank(failures, all_lines), lines=lines, versions=versions)


def _with_root_rank(failures: Sequence[Failure], lines: list[Line]) -> tuple[Failure, ...]:
    """Copy the rank that the launcher's "Root Cause" names to the failures of that report."""
    root = next((n for n, line in enumerate(lines) if "Root Cause" in line.text), None)
    if root is None:
        return tuple(failures)
    matches = (ROOT_RANK.match(line.text) for line in lines[root : root + 10])
    rank = next((int(match["rank"]) for match in matches if match), None)
    number = lines[root].number
    ranked = []
    for failure in failures:
        if number <= failure.line <= number + 10:
            ranked.append(replace(failure, rank=rank))
        else:
            ranked.append(failure)
    return tuple(ranked)


# --- what decides -----------------------------------------------------------------------

_SENT = ("SIGTERM", "SIGINT", "SIGHUP")
_FOLLOWS = re.compile(
    r"Connection (?:closed by peer|reset by peer|refused)|Broken pipe|recvBytes|sendBytes"
    r"|Socket Timeout"
    r"|DistStoreError|DistBackendError|waitForInput|Rank \d+ successfully reached monitoredBarrier"
    r"|KeyboardInterrupt|BrokenProcessPool|SignalException|Cannot re-initialize|TCPStore"
    r"|destroy_process_group|another rank|peer .* (?:died|exited)"
)
"""Exceptions that follow from another rank's end, or from Ctrl-C."""


def follows(failure: Failure) -> bool:
    """Whether this failure only reports another one."""
    return failure.kind == "launcher" or bool(_FOLLOWS.search(failure.whole))


def _decisive(failures: tuple[Failure, ...]) -> Failure | None:
    by_kind: dict[str, list[Failure]] = {}
    for failure in failures:
        by_kind.setdefault(failure.kind, []).append(failure)
    if by_kind.get("memory"):
        return by_kind["memory"][0]
    signals = by_kind.get("signal", [])
    exceptions = by_kind.get("exception", [])
    errors = by_kind.get("error", [])
    deadly = [one for one in signals if one.name not in _SENT + ("SIGABRT",)]
    if deadly:
        return deadly[0]
    if by_kind.get("limit"):
        return by_kind["limit"][0]
    original = [one for one in exceptions if not follows(one)]
    if original:
        return _first_rank(original, by_kind)
    usage = by_kind.get("usage", [])
    if usage:
        return usage[-1]
    primary = [one for one in errors if not follows(one)]
    order = (primary, exceptions, errors, signals, by_kind.get("launcher"), by_kind.get("exit"))
    for candidates in order:
        if candidates:
            return candidates[0]
    return None


def _first_rank(exceptions: list[Failure], by_kind: Mapping[str, list[Failure]]) -> Failure:
    """Take the last exception of each rank, and of these the one of the rank that failed first."""
    last: dict[int | None, Failure] = {}
    for failure in exceptions:
        last[failure.rank] = failure
    for kind in ("signal", "exit", "launcher"):
        for report in by_kind.get(kind, ()):
            if report.rank is not None and report.rank in last:
                return last[report.rank]
    if None in last and len(last) > 1:
        del last[None]
    return min(last.values(), key=lambda failure: failure.line)
