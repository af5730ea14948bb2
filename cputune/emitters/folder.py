"""What a launch promises of the other files of its folder: the lines that were emitted.

A line that is added may stay; one that is gone or changed is found by its digest. What is yours to
set (an image, mirrors, names, times) does not count, and ``verify`` reads its meaning instead.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence

from cputune.emitters.format import EmittedFile

# Endings of files of which every character counts.
_WHOLE = (".py", ".json")
# Lines that you may change, by the end of the file's name; the first that fits.
_YOURS = {
    "Dockerfile": re.compile(r"ARG \w+="),
    ".kubectl.sh": re.compile(r"(?:image|namespace|job|claim)="),
    ".sh": re.compile(r"(?:python|tuned|port)="),
    "accelerate.yaml": re.compile(r"(?:main_process_\w+|machine_rank):"),
}
# Files whose meaning is read, or that hold the promise.
_LEFT_OUT = ("pvc.yaml", "kustomization.yaml", "plan.json")
_MIRRORED = re.compile(r"(?:[\w.-]+(?::\d+)?/)+(?=busybox:)")
_HINT = re.compile(r"--hint=\w+")
_TIME = re.compile(r"\b\d+[smhd]\b")


def kept_lines(files: Iterable[EmittedFile]) -> dict[str, str] | None:
    """The marks of the lines of these files, by name; None without a file."""
    marks = dict[str, str]()
    for file in files:
        if file.name in _LEFT_OUT or file.name.startswith("hosts."):
            continue
        marks[file.name] = " ".join(
            _mark(file.name, line) for line in lines_of(file.name, file.text)
        )
    return marks or None


# The key of plan.json with the digest of its other keys.
DIGEST = "digest"


def digest_of(document: Mapping[str, object]) -> str:
    """The digest of a plan.json, by its values: how it is laid out does not count."""
    others = {key: value for key, value in document.items() if key != DIGEST}
    return _digest(json.dumps(others, sort_keys=True), 16)


def changed_lines(name: str, marks: str, text: str) -> tuple[str, ...]:
    """What a file has instead of lines that were emitted; empty if all are there."""
    lines = lines_of(name, text)
    here = [_mark(name, line) for line in lines]
    promised = marks.split()
    meant = list[str]()
    for line, mark in zip(lines, here, strict=True):
        meant.append(mark if mark in promised else _mark(name, _as_emitted(line)))
    missing = 0
    for mark in promised:
        if promised.count(mark) > meant.count(mark) and not _is_longer(mark, here):
            missing += 1
    if not missing:
        return ()
    others = []
    for line, mark in zip(lines, meant, strict=True):
        if mark not in promised and not name.endswith(_WHOLE):
            others.append(line)
    return tuple(others[:3]) or (f"{missing} lines that were emitted are not there",)


def _as_emitted(line: str) -> str:
    """The line without a comment at its end, and with the group of a user of the image."""
    line = re.sub(r" # [^'\"]*$", "", line)
    return re.sub(r"^USER (\d+)$", r"USER \1:\1", line)


def lines_of(name: str, text: str) -> list[str]:
    """The lines that count: without comments, each with what a backslash continues."""
    if name.endswith(_WHOLE):
        return [text]
    yours = next((_YOURS[end] for end in _YOURS if name.endswith(end)), None)
    lines = list[str]()
    for written in text.replace("\\\n", " ").splitlines():
        line = _TIME.sub("TIME", _MIRRORED.sub("", " ".join(written.split())))
        if line and not line.startswith("#") and not (yours and yours.match(line)):
            lines.append(line)
        elif line.startswith("#SBATCH"):  # of a header nothing else is fixed
            lines += _HINT.findall(line)
    return lines


def _mark(name: str, line: str) -> str:
    """The digest of a line; those of its words if more packages may be added."""
    if name.endswith("Dockerfile") and ("pip install" in line or line.startswith("FROM ")):
        return "+" + ".".join(_digest(word, 4) for word in line.split())
    return _digest(line, 6)


def _is_longer(mark: str, here: Sequence[str]) -> bool:
    """Whether a line has these words in their order, and more."""
    if not mark.startswith("+"):
        return False
    for other in here:
        words = iter(other[1:].split("."))
        if other.startswith("+") and all(word in words for word in mark[1:].split(".")):
            return True
    return False


def _digest(text: str, letters: int) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:letters]
