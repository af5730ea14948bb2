"""Removes the prefixes of the lines of a log, and names the stream of each line. Pure.

Launchers, schedulers and collectors of logs write a name, a time or a level before each line. Some
of these prefixes are known, because they name a rank. Any other is learned from the log itself: it
is the text before "Traceback (most recent call last)" if the frames below have it too. Lines of
several processes that are mixed are separated by it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

# Characters of a line that are read.
LONGEST_LINE = 2000

# Lines of other processes between a traceback's first line and its first frame.
LINES_TO_FRAME = 200

# Prefixes that are learned from one log.
MOST_PREFIXES = 32

TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its prefixes.

    Attributes:
        number: of the line in the log, from 1.
        rank: the rank that a prefix names, or None.
        stream: the prefixes without their times. Lines of one process have the same.
    """

    number: int
    text: str
    rank: int | None
    stream: str = ""


_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TIME = re.compile(
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d[.,]?\d*(?: ?Z| ?[+-]\d\d:?\d\d)?\]?:?\s?"
    r"|\b[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?"
    r"|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"
    r"|(?<![\w.])\d+\.\d+(?=\s)"
)
_KNOWN = (
    re.compile(r"\[(?:rank|default|local_rank)\s?(?P<rank>\d+)\]:\s?"),
    re.compile(r"\[\d+,(?P<rank>\d+)\]<(?:stderr|stdout)>:\s?"),
    re.compile(r"\(\w+ (?:pid|rank)=\d+[^)]*\)\s"),
    re.compile(r"[\w.-]+-\d+\s+\|\s"),  # docker compose
    re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]?\d*(?:Z|[+-]\d\d:?\d\d)?\]?:?\s"),
    re.compile(r"(?:\w{3} [ \d]\d \d\d:\d\d:\d\d \S+ )?kernel: (?:\[ *[\d.]+\] )?"),
)
# Prefixes of ``srun --label`` and ``mpirun -prepend-rank``: so short that most lines must have
# one.
_NUMBERED = re.compile(r"\s?(?P<rank>\d{1,4}): |\[(?P<other>\d{1,4})\] ")
_FIRST_FRAME = re.compile(r'\s+(?:\| +)?File "')
# Before the "Traceback" of rich and of Jupyter, which are no prefixes.
_BOX = re.compile(r"[╭─│┌╮]|\w+(?:Error|Exception|Interrupt)\s+$")


def lines_of(text: str) -> list[Line]:
    """The lines of a log without their prefixes."""
    lines = list(_known_removed(text))
    return _learned_removed(lines, _learned(lines))


def _known_removed(text: str) -> Iterator[Line]:
    raw = _ANSI.sub("", text).split("\n")
    shown = [line for line in raw if line.strip()]
    numbered = sum(bool(_NUMBERED.match(line)) for line in shown)
    labelled = numbered > 2 and numbered * 3 > len(shown) * 2
    for number, line in enumerate(raw, start=1):
        for part in _parts(line):
            rest = part[:LONGEST_LINE].rstrip()
            rank: int | None = None
            if labelled and (number_match := _NUMBERED.match(rest)):
                rank = int(number_match["rank"] or number_match["other"])
                rest = rest[number_match.end() :]
            yield _without_known(Line(number, rest, rank))


def _without_known(line: Line) -> Line:
    """The line without the prefixes that are known, which may follow one another."""
    while True:
        matches = (prefix.match(line.text) for prefix in _KNOWN)
        found = next((match for match in matches if match), None)
        if found is None:
            return line
        rank = line.rank
        stream = line.stream
        named = found.groupdict().get("rank")
        if named is not None:
            rank = int(named)
        else:
            stream += _TIME.sub("", found[0])
        line = replace(line, text=line.text[found.end() :], rank=rank, stream=stream)


# --- a line that holds several ----------------------------------------------------------

_TEXT_KEYS = ("log", "message", "msg", "textPayload", "line", "text", "event")
_LEVEL_KEYS = ("level", "levelname", "severity")
_QUIET = ("debug", "info", "notice", "warn", "warning")


def _parts(line: str) -> list[str]:
    """The lines that one line of the log holds: a JSON record, or a traceback with ``\\n``."""
    if line.startswith("{") and line.rstrip().endswith("}"):
        parts = _json_parts(line)
        if parts:
            return parts
    if f"{TRACEBACK}:\\n" in line:
        line = line.replace("\\n", "\r").replace('\\"', '"')
    return line.split("\r")


def _json_parts(line: str) -> list[str]:
    """The text of a JSON record of a log. Empty if it is no such record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return []
    if not isinstance(record, dict):
        return []
    texts = []
    for key, value in record.items():
        if isinstance(value, str) and (key in _TEXT_KEYS or TRACEBACK in value):
            texts.append(value)
    level = ""
    for key in _LEVEL_KEYS:
        value = record.get(key)
        if isinstance(value, str) and value.lower() in _QUIET:
            level = f"{value.upper()}: "
    parts: list[str] = []
    for text in texts:
        if TRACEBACK not in text and text.strip() and not text.startswith(" "):
            text = f"{level}{text}"
        parts += text.rstrip("\n").replace("\r", "\n").split("\n")
    return parts


# --- prefixes that a log teaches --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Prefix:
    """A prefix that was seen before a traceback and before its frames.

    Attributes:
        shape: matches it with other numbers, and with other names if it has brackets.
        counts: it has numbers that differ from line to line, so all its lines are one stream.
    """

    shape: re.Pattern[str]
    counts: bool


def _learned(lines: Sequence[Line]) -> list[_Prefix]:
    prefixes: list[_Prefix] = []
    for place, line in enumerate(lines):
        before = _before_traceback(line.text)
        if not before or len(prefixes) >= MOST_PREFIXES:
            continue
        if any(prefix.shape.fullmatch(before) for prefix in prefixes):
            continue
        shape = _shape_of(before)
        own = _TIME.sub("", before)
        framed = False
        same = False
        for other in lines[place + 1 : place + 1 + LINES_TO_FRAME]:
            match = shape.match(other.text)
            if match and _FIRST_FRAME.match(other.text[match.end() :]):
                framed = True
                if _TIME.sub("", match[0]) == own:
                    same = True
                    break
        if framed:
            prefixes.append(_Prefix(shape, counts=not same))
    return prefixes


def _before_traceback(text: str) -> str:
    """The text before "Traceback" in a line, up to a prefix that names a rank."""
    before, found, _ = text.partition(TRACEBACK)
    if not found or not before.strip(" \t+|") or _BOX.search(before):
        return ""
    before = before.removesuffix("+ Exception Group ").removesuffix("Exception Group ")
    for known in _KNOWN:
        for match in known.finditer(before):
            if match.end() == len(before):
                return before[: match.start()]
    return before


_LEVELS = "DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL|SEVERE"
_TOKEN = re.compile(r"(?P<space>\s+)|(?P<word>[A-Za-z][\w.-]*)|(?P<number>\d[\w.]*)|(?P<other>.)")


def _shape_of(prefix: str) -> re.Pattern[str]:
    """A pattern for this prefix on other lines and of other processes."""
    body = prefix.rstrip()
    any_name = re.search(r"[\[\](){}<>|@/]", body) is not None
    pattern = ""
    for token in _TOKEN.finditer(body):
        if token["space"]:
            pattern += r"\s+"
        elif token["number"]:
            pattern += r"\d[\w.]*"
        elif token["other"]:
            pattern += re.escape(token["other"])
        elif any_name and not re.fullmatch(_LEVELS, token["word"], re.IGNORECASE):
            pattern += r"[\w.-]+"
        else:
            pattern += re.sub(r"\d+", r"\\d+", re.escape(token["word"]))
    indent = re.escape(prefix[len(body) :])
    return re.compile(rf"{pattern}(?:{indent}|\s*$)")


def _learned_removed(lines: list[Line], prefixes: list[_Prefix]) -> list[Line]:
    removed = []
    for place, line in enumerate(lines):
        following = ""
        if place + 1 < len(lines):
            following = lines[place + 1].text
        removed.append(_without_learned(line, prefixes, following))
    return removed


def _without_learned(line: Line, prefixes: list[_Prefix], following: str) -> Line:
    for prefix in prefixes:
        match = prefix.shape.match(line.text)
        if match is None:
            continue
        if prefix.counts:
            stream = prefix.shape.pattern
        else:
            stream = _TIME.sub("", match[0]).rstrip()
        rest = replace(line, text=line.text[match.end() :], stream=line.stream + stream)
        numbered = _NUMBERED.fullmatch(match[0])
        if numbered:
            rest = replace(rest, rank=int(numbered["rank"] or numbered["other"]))
        return _without_known(rest)
    # A logger or a progress bar writes before the first line of a traceback alone.
    if _before_traceback(line.text) and _FIRST_FRAME.match(following):
        return replace(line, text=line.text[line.text.index(TRACEBACK) :])
    return line
