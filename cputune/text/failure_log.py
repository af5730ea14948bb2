"""Finds the failure that ended a job in its log. Pure.

The log is split into ``Failure`` records, and one of them decides::

    log = read_failures(text)
    log.decisive.title     # "IndexError: list index out of range"

Each failure is a cause, a consequence of another one, or a report of another one (``Standing``).
The first of these decides:

1. A kill for memory by the kernel.
2. A process that died of a signal, or the known error before it, if the crash is a consequence.
  Exceptions of other ranks follow from it. SIGTERM and SIGINT come from a launcher or a person,
  and SIGABRT follows an error line, so these decide only if the log shows nothing else.
3. A limit of the cluster.
4. An exception that is a cause. Of one process the last decides. Of several, the one that failed
  first: the one that the launcher names, or else the first in the log.
5. A refused command line, then an error line that is known as a cause.
6. A known consequence, then a known report: a closed connection, a worker that ended.
7. Any other error line, exception, signal, and the exit status that a launcher reports.

Warnings and prints never decide.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from cputune.inside.messages import OF_LAUNCHERS
from cputune.text._failure_lines import (
    IGNORED,
    ROOT_RANK,
    Kind,
    begins_something,
    report_of,
    shows_command,
    signal_of,
    warns,
)
from cputune.text._log_prefixes import Line, lines_of

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
        stream: other prefixes of the lines of its process, such as the name of a pod.
        frames: the calls of the traceback, the outermost first.
        cause: the exception that was being handled, or that this one was raised from.
        log: the whole text in which it is.
    """

    kind: Kind
    line: int
    text: str
    name: str = ""
    message: str = ""
    rank: int | None = None
    stream: str = ""
    frames: tuple[Frame, ...] = ()
    cause: Failure | None = None
    log: str = field(default="", compare=False, repr=False)

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
    """All failures of a log in their order, and the versions of packages that it names.

    ``ends_in_traceback``: its last traceback lacks the line with the exception.
    """

    text: str = ""
    failures: tuple[Failure, ...]
    lines: tuple[str, ...]
    ends_in_traceback: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def decisive(self) -> Failure | None:
        """The failure that ended the job, by kinds alone. None if the log shows no failure."""
        return self.decide(standing_by_kind)

    def last_lines(self, count: int) -> list[tuple[int, str]]:
        """Those of the last lines that do not warn, with their numbers in ``lines``."""
        numbered = list(enumerate(self.lines, start=1))
        return [(number, text) for number, text in numbered[-count:] if not warns(text)]

    def decide(self, standing_of: Callable[[Failure], Standing]) -> Failure | None:
        """The failure that ended the job, if ``standing_of`` says what is known of each."""
        return _Decision(self.failures, standing_of).decisive()


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

_BEGIN = re.compile(
    r"\s*(?:\+ )?(?:Exception Group |Original )?Traceback \(most recent call last\)"
)
# The first line of a traceback as Jupyter and rich print it.
_BOXED = re.compile(
    r"(?:\w+(?:Error|Exception|Interrupt)\s|─ )\s*Traceback \(most recent call last\)"
)
_FRAME = re.compile(
    r'\s*(?:\| )?File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?'
)
_CALL = re.compile(r'\s*File "[^"]+", line \d+, in \S')
_CELL = re.compile(r"(?:File )?(?P<file>[~/\w.-]+\.py):(?P<line>\d+),? in (?P<function>[\w.<>]+)")
# Before IPython 8 a frame had no number; Colab makes a link of its file.
_OLD_CELL = re.compile(
    r"\[?(?P<file>(?:[~/]|~?\\|[A-Z]:\\)[^\]()]*\.py)\]?(?:\(\S+\))?"
    r" in (?P<function>[\w.<>]+)(?:\(.*\))?"
)
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
# With the module of its class it needs no ending that tells an exception.
_OF_MODULE = re.compile(r"(?:[a-z_]\w*\.)+[A-Z]\w*: \S.*")
# As hydra and pools print an exception of another process.
_REPR = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))"
    r"\((?P<quote>['\"])(?P<message>.*)(?P=quote),?\)"
)
_CHAINED = re.compile(
    r"\s*(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception)"
)
_RICH_FRAME = re.compile(r"\s*[│|]\s*(?P<file>[~/][^:\s]+\.py):(?P<line>\d+) in (?P<function>\S+)")


def _frame_of(text: str) -> Frame | None:
    """The call that a line of a traceback names."""
    frame = _FRAME.match(text) or _RICH_FRAME.match(text) or _CELL.match(text)
    if frame:
        function = (frame["function"] or "").strip()
        return Frame(file=frame["file"], line=int(frame["line"]), function=function)
    old = _OLD_CELL.fullmatch(text.rstrip())
    if old is not None:
        return Frame(file=old["file"], line=0, function=old["function"])
    cell = _INPUT.match(text)
    if cell is None:
        return None
    number = 0
    if cell["line"].isdigit():
        number = int(cell["line"])
    return Frame(file=cell["file"], line=number)


class _Stream:
    """Collects the failures of one process, line by line."""

    def __init__(self, rank: int | None, stream: str) -> None:
        self.rank = rank
        self.stream = stream
        self.ignored = False
        self.is_excerpt = False
        self.found: list[Failure] = []
        self.frames: list[Frame] | None = None
        self.message: list[str] | None = None
        self.chained: Failure | None = None

    def take(self, line: Line) -> bool:
        """Read a line. Return whether it belongs to a traceback or to an exception's message."""
        text = line.text
        if IGNORED.match(text):
            # Python prints what a destructor raises, and goes on.
            self._end_message()
            self.ignored = True
            return True
        if _BEGIN.match(text) or _BOXED.search(text):
            self._end_message()
            self.frames = []
            self.is_excerpt = False
            return True
        if _CHAINED.match(text):
            self._end_message()
            if self.found and self.found[-1].kind in ("exception", "launcher"):
                self.chained = self.found.pop()
            return True
        if self.frames is not None:
            return self._in_traceback(line, self.frames)
        if self.ignored and self.raise_alone(line):
            return True
        if self.message is not None:
            return self._in_message(text)
        if _CALL.match(text) or _OLD_CELL.fullmatch(text.rstrip()):
            # An excerpt, without the first line of its traceback.
            self.frames = []
            self.is_excerpt = True
            return self._in_traceback(line, self.frames)
        return False

    def _in_traceback(self, line: Line, frames: list[Frame]) -> bool:
        text = line.text
        frame = _frame_of(text)
        if frame is not None:
            frames.append(frame)
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
        if self.is_excerpt and not (_ALONE.fullmatch(text) or _OF_MODULE.fullmatch(text)):
            self.frames = None  # a stack that is printed ends in no exception
            return False
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
        text = line.text.strip()
        alone = _ALONE.fullmatch(text) or _REPR.fullmatch(text)
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
        if self.ignored:
            kind = "warning"
            self.ignored = False
        failure = Failure(
            kind=kind,
            line=line.number,
            text=line.text.strip(),
            name=name,
            message=message,
            rank=self.rank,
            stream=self.stream,
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
    # as pip and conda list them
    r"|^(torch|transformers|accelerate|datasets|peft|trl) {2,}(\d+\.\d+(?:\.\d+)?)",
    re.MULTILINE,
)


_BEGINS_COMMAND = re.compile(r"\s*(?:[$>+%#]\s+)?(?:\w+=\S*\s+)*[\w./-]+\s")


def _command_lines(lines: Sequence[Line]) -> frozenset[int]:
    """The numbers of the lines of echoed commands; a backslash at the end continues one."""
    numbers = set()
    continues = False
    for line in lines:
        ends_open = line.text.rstrip().endswith("\\")
        begins = ends_open and _BEGINS_COMMAND.match(line.text) is not None
        if continues or begins or shows_command(line.text):
            numbers.add(line.number)
        continues = ends_open and (continues or begins)
    return frozenset(numbers)


def read_failures(text: str) -> FailureLog:
    """Find all failures of a log. Line numbers are those of this text."""
    streams: dict[tuple[int | None, str], _Stream] = {}
    others: list[Failure] = []
    all_lines = lines_of(textwrap.dedent(text))
    following_lines = _following(all_lines)
    commands = _command_lines(all_lines)
    for line, following in zip(all_lines, following_lines, strict=True):
        key = (line.rank, line.stream)
        if key not in streams:
            streams[key] = _Stream(line.rank, line.stream)
        stream = streams[key]
        if stream.take(line) or line.number in commands:
            continue
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
                    stream=line.stream,
                )
            )
    for stream in streams.values():
        stream._end_message()
        if stream.chained is not None:
            stream.found.append(stream.chained)
    failures = list(others)
    for stream in streams.values():
        failures += stream.found
    failures += _boxed(all_lines, failures)
    failures.sort(key=lambda failure: failure.line)
    versions: dict[str, str] = {}
    for named in _VERSION_LINE.finditer(text):
        package, version = (text for text in named.groups() if text)
        versions.setdefault(package, version)
    lines = [one.text for one in all_lines if one.text.strip() and one.number not in commands]
    placed = (_in_log(failure, text) for failure in _with_root_rank(failures, all_lines))
    return FailureLog(
        text=text,
        failures=tuple(placed),
        lines=tuple(lines),
        ends_in_traceback=any(stream.frames for stream in streams.values()),
        versions=versions,
    )


def _in_log(failure: Failure, text: str) -> Failure:
    cause = failure.cause
    if cause is not None:
        cause = _in_log(cause, text)
    return replace(failure, cause=cause, log=text)


_EDGE = re.compile(r"\s*-{50,}\s*")


def _boxed(lines: Sequence[Line], others: Sequence[Failure]) -> list[Failure]:
    """The texts between two lines of dashes (errors of Open MPI), if nothing else failed."""
    found: list[Failure] = []
    if any(failure.kind != "warning" for failure in others):
        return found
    start = None
    for at, line in enumerate(lines):
        if not _EDGE.fullmatch(line.text):
            continue
        if start is not None and at > start + 1:
            text = " ".join(" ".join(one.text.split()) for one in lines[start + 1 : at])
            found.append(Failure(kind="error", line=lines[start + 1].number, text=text.strip()))
            start = None
        else:
            start = at
    return found


def _following(lines: Sequence[Line]) -> list[str]:
    """For each line the next one of the same stream, or an empty string."""
    following = [""] * len(lines)
    last: dict[tuple[int | None, str], int] = {}
    for place, line in enumerate(lines):
        key = (line.rank, line.stream)
        if key in last:
            following[last[key]] = line.text
        last[key] = place
    return following


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

Role = Literal["cause", "consequence", "reporter", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a failure is related to the others of a log.

    Attributes:
        role: a "cause" follows from no other. A "consequence" happens to a process after a cause
            that the log mostly has too: a closed connection, a crash. A "reporter" only says
            that another process or step has failed. After a "note" training goes on.
        known: somebody knows this failure, and has chosen its role.
    """

    role: Role = "cause"
    known: bool = False


_REPORTERS = ("launcher", "exit")


def standing_by_kind(failure: Failure) -> Standing:
    """The standing of a failure about which nothing else is known."""
    if failure.kind in _REPORTERS:
        return Standing(role="reporter")
    return Standing()


# Signals of a launcher or a person, which end the ranks that have not failed.
_SENT = ("SIGTERM", "SIGINT", "SIGHUP")
_KILLED_BY_HYDRA = re.compile(r"KILLED BY SIGNAL: 9\b|EXIT STRING: Killed")
_OF_HYDRA = re.compile(r"(?:\[\d+\] )?\[(?:proxy:[\d:]+|mpiexec)@")


@dataclass(frozen=True, slots=True)
class _Decision:
    """The failures of a log in the order in which one of them decides."""

    failures: Sequence[Failure]
    standing_of: Callable[[Failure], Standing]

    def decisive(self) -> Failure | None:
        for choose in (
            self.kill_for_memory,
            self.cause_of_a_crash,
            self.limit,
            self.exception,
            self.refused_arguments,
            self.known_error,
            self.known_consequence,
            self.unknown_error,
            self.anything,
        ):
            chosen = choose()
            if chosen is not None:
                return chosen
        return None

    def of(self, *kinds: Kind) -> list[Failure]:
        return [failure for failure in self.failures if failure.kind in kinds]

    def role_of(self, failure: Failure) -> Role:
        return self.standing_of(failure).role

    def kill_for_memory(self) -> Failure | None:
        return _first(self.of("memory"))

    def cause_of_a_crash(self) -> Failure | None:
        """A deadly signal, or a known error before it that explains it.

        SIGABRT follows an error line in any case.
        """
        deadly = []
        for signal in self.of("signal"):
            if signal.name not in _SENT and signal.name != "SIGABRT":
                deadly.append(signal)
        causes = [signal for signal in deadly if self.role_of(signal) == "cause"]
        if causes:
            return self.refusal_of_hydra(causes[0]) or causes[0]
        if not deadly:
            return None
        for error in self.of("error"):
            if error.line < deadly[0].line and self._is_known_cause(error):
                return error
        return deadly[0]

    def refusal_of_hydra(self, signal: Failure) -> Failure | None:
        """The known error of Intel MPI's launcher after which it has killed the ranks itself."""
        if not _KILLED_BY_HYDRA.search(signal.text):
            return None
        for error in self.of("error"):
            own = _OF_HYDRA.match(error.text) is not None and error.line < signal.line
            if own and self._is_known_cause(error):
                return error
        return None

    def limit(self) -> Failure | None:
        return _first(self.of("limit"))

    def exception(self) -> Failure | None:
        """The last exception of a process; of several processes, that of the first to fail."""
        causes = []
        for failure in self.of("exception"):
            if self.role_of(failure) == "cause":
                causes.append(failure)
        if not causes:
            return None
        reports = self.of("signal") + self.of("exit") + self.of("launcher")
        return _first_rank(causes, reports)

    def refused_arguments(self) -> Failure | None:
        return _first(self.of("usage")[-1:])

    def known_error(self) -> Failure | None:
        return next(filter(self._is_known_cause, self.of("error")), None)

    def known_consequence(self) -> Failure | None:
        return self._known("consequence") or self.abort() or self._known("reporter")

    def abort(self) -> Failure | None:
        """SIGABRT in a log without any error line that could be its reason."""
        aborts = [signal for signal in self.of("signal") if signal.name == "SIGABRT"]
        if self.unknown_error() is None:
            return _first(aborts)
        return None

    def _known(self, role: Role) -> Failure | None:
        for failure in self.of("exception") + self.of("error"):
            standing = self.standing_of(failure)
            if standing.known and standing.role == role:
                return failure
        return None

    def unknown_error(self) -> Failure | None:
        for error in self.of("error"):
            if self.role_of(error) == "cause":
                return error
        return None

    def anything(self) -> Failure | None:
        rest = self.of("exception") + self.of("error") + self.of("signal")
        return _first(rest + self.of("launcher") + self.of("exit"))

    def _is_known_cause(self, failure: Failure) -> bool:
        standing = self.standing_of(failure)
        return standing.known and standing.role == "cause"


def _first(failures: Sequence[Failure]) -> Failure | None:
    if failures:
        return failures[0]
    return None


def _first_rank(exceptions: Sequence[Failure], reports: Sequence[Failure]) -> Failure:
    """Take the last exception of each process, and of these the one that came first.

    ``reports`` are those of launchers, which may name the rank that failed first.
    """
    last: dict[tuple[int | None, str], Failure] = {}
    for failure in exceptions:
        last[failure.rank, failure.stream] = failure
    for report in reports:
        of_rank = [one for one in last.values() if one.rank == report.rank is not None]
        if of_rank:
            return of_rank[0]
    named = [one for one in last.values() if one.rank is not None or one.stream]
    return min(named or last.values(), key=lambda failure: failure.line)
