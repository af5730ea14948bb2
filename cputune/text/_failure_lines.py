"""Reads one line of a log: signals, kernel lines, refused arguments. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "exception", "signal", "memory", "usage", "error", "limit", "exit", "warning", "launcher"
]

# --- lines that are no traceback --------------------------------------------------------

# An event of Kubernetes with its age, as `kubectl describe` and `kubectl get events` print it.
_EVENT = r"Warning +[A-Z]\w+ +(?:\d+[smhd]|<\w+>)|^\d+[smhd]\S* +Warning +[A-Z]\w+ "
_WARNING = re.compile(
    r"\w*Warning: |^OMP: (?:Info|Warning)|\bWARN(?:ING)?\b|^\[?W\d{4}|^\[W[ \d]"
    rf"|^(?!{_EVENT})[Ww]arning"
    r"|_WARN\||^I\d{4} |^\[I[ \d]"
    r"|^\W*INFO\b|^\W*DEBUG\b|\| ?INFO ?\|"
)
_SIGNAL_WORDS = {
    "killed": "SIGKILL",
    "segmentation fault": "SIGSEGV",
    "bus error": "SIGBUS",
    "illegal instruction": "SIGILL",
    "floating point exception": "SIGFPE",
    "aborted": "SIGABRT",
    "terminated": "SIGTERM",
    "hangup": "SIGHUP",
    "cpu time limit exceeded": "SIGXCPU",
    "file size limit exceeded": "SIGXFSZ",
    "trace/breakpoint trap": "SIGTRAP",
}
_NUMBERS = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
}
_WORDS = "|".join(map(re.escape, _SIGNAL_WORDS))
_SIGNALS = (
    re.compile(rf"(?P<word>{_WORDS})(?: \(core dumped\))?", re.IGNORECASE),
    re.compile(rf"\S+: line \d+:\s+\d+ (?P<word>{_WORDS})(?: \(core dumped\))?\s.*", re.IGNORECASE),
    re.compile(
        rf"srun: error: \S+: tasks? [\d,-]+: (?P<word>{_WORDS})(?: \(core dumped\))?", re.IGNORECASE
    ),
    re.compile(r".*\bSignal (?P<number>\d+) \(SIG\w+\) received by PID.*"),
    re.compile(r".*exited on signal (?P<number>\d+)\b.*"),
    re.compile(r".*KILLED BY SIGNAL: (?P<number>\d+)\b.*"),
    re.compile(r".*EXIT STRING: \w[\w ]* \(signal (?P<number>\d+)\).*"),
    re.compile(r".*\b(?:died with|got signal:?) <?(?:Signals\.)?(?P<name>SIG\w+).*"),
    re.compile(r".*\bgot signal: (?P<number>\d+)\b.*"),
    re.compile(r".*\bexitcode\s*:\s*-(?P<number>\d+)\b.*"),
    re.compile(r".*\breturn code = -(?P<number>\d+)\b.*"),
    re.compile(rf"Fatal Python error: (?P<word>{_WORDS})", re.IGNORECASE),
    re.compile(
        rf"\*\*\* Process received signal \*\*\*|\[\S+\] Signal: (?P<word>{_WORDS}) \(\d+\)",
        re.IGNORECASE,
    ),
    re.compile(r".*received signal (?P<name>SIG\w+)\b.*"),
    re.compile(
        r"(?:.*\b)?exit(?:ed with)?(?: code| status)?:?\s+(?P<status>1(?:29|3[0-9]|4[0-3]"
        r"|5[23]))\b.*",
        re.IGNORECASE,
    ),
    re.compile(r".*\bexitcode\s*:\s*(?P<status>1(?:3[0-9]))\b.*"),
)
# Python writes it before what a destructor raised.
IGNORED = re.compile(r"Exception ignored in\b")
_MEMORY = re.compile(
    r"Out of memory: Kill|[Mm]emory cgroup out of memory|oom[-_ ]kill|OOM[- ]?[Kk]ill"
    r"|invoked oom-killer"
    r"|: Out Of Memory$|exceeded (?:job |step )?memory limit|memory usage .* exceed|Killed "
    r"process \d+|TERM_(?:MEMLIMIT|SWAP)\b|job killed: p?v?mem\b",
)
_LIMIT = re.compile(
    r"DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)|job killed: |DeadlineExceeded|TERM_[A-Z]+: "
)
_USAGE = re.compile(r"(?:(?P<program>\S+): )?(?:error|Error): (?P<message>.+)")
_USAGE_WORDS = re.compile(
    r"unrecognized arguments?|invalid choice|the following arguments are required|expected "
    r"(?:one|at least one)"
    r" argument|No such option|Missing option|invalid \S+ value|ambiguous option|not allowed "
    r"with argument"
)
# A shell took an option for a command: the line before ended too early.
_OPTION_RUN = re.compile(r"(?:^|: )--?[A-Za-z][\w-]*(?:=\S*)?: (?:command )?not found$")
# A status that a launcher reports, and the other lines of torchrun's report.
_CPP = re.compile(r"terminate called after throwing an instance of '(?P<name>[^']+)'")
_WHAT = re.compile(r"\s*what\(\):\s*(?P<message>.*)")
_EXIT = re.compile(
    r"(?:.*\b)?(?:exit(?:ed)?(?: with)?(?: non-zero)?(?: exit)?(?: code| status)|exitcode"
    r"|EXIT CODE|return code)\s*[:=]?\s*(?P<status>\d+)\b.*"
    r"|\S+ FAILED|Root Cause \(first observed failure\):|Failures:|error_file\s*:.*",
    re.IGNORECASE,
)
# A line with a status that also says what could not be done.
_REASON = re.compile(r"\bunable to (?:run|start|launch)\b")
ROOT_RANK = re.compile(r"\s*rank\s*:\s*(?P<rank>\d+) \(local_rank: \d+\)")
_ERROR = re.compile(
    r"(?i)\berror\b|\bfatal\b|\bfail(?:ed|ure|s)?\b|\babort|\bcannot\b|can't|could(?: not|n't)"
    r"|\bunable\b|\bdenied\b|\bnot permitted\b|\bEvicted\b|\blow on resource\b"
    r"|usage exceeds|\b[Tt]erminated?\b.*[Bb]ecause|will terminate"
    r"|not found|\bno such\b|\bexceeded\b|\brefused\b|\bnot implemented\b|unsupported"
    r"|\binvalid\b|does not support"
    r"|^ssh: connect to host|^\[E\d* "
    r"|undefined symbol|_ERROR\||not enough|\bdisabled?\b|\bDisabling\b|already in use"
    r"|has detected an attempt"
    r"|expected \d+, errno|MPI_ABORT|\w+NotFound:$|corrupted|no wheels|is unusable|no version of"
    rf"|BAD TERMINATION|No solution found|FailedMount|toomanyrequests|^(?-i:{_EVENT})"
)
# What a launcher or a shell prints of a command before it runs it. Its words are no failures.
_PROGRAM = (
    r"(?:\S*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed|mpi(?:run|exec)\S*|srun|sbatch|ssh"
    r"|ipexrun|numactl|taskset|hydra_\w+|docker|kubectl|bash|sh|env|sudo|exec|nohup|export)"
)
# An echoed command ends with its words: nothing says that it failed.
_TELLS_RESULT = (
    r"(?!.*\b(?:error|fatal|warning|usage):"
    r"|.*: (?:command not found|not found|no such|permission denied|killed|aborted|segmentation)"
    r"|.*[^-\w](?:exit(?:ed|s)|returned|failed|fails|died|detected|noticed|cannot|unable)\b)"
)
_ECHOED = re.compile(
    rf"{_TELLS_RESULT}(?:"
    rf"(?:\[\S+\]\s*)?(?:\w+@[\w.-]+:\S*[$#]|[$>+%]+)\s+(?:\w+=\S*\s+)*{_PROGRAM}\s"
    rf"|{_PROGRAM}\s(?=.*\s--?[A-Za-z])"
    r"|.*\b(?:(?:launch|command.?line|program) arg(?:ument)?s|launch(?:ing)? command|command.?line"
    r"|cmd|argv|running command|executing(?: command)?)\s*[:=]\s*\S.*\s--?[A-Za-z])",
    re.IGNORECASE,
)
_WORDS_OF_COMMAND = re.compile(r"\[(?:'[^']*'|\"[^\"]*\")(?:, *(?:'[^']*'|\"[^\"]*\"))+\]")
# A line of a printed configuration: of a dataclass, of JSON, of a Namespace.
_SETTING = re.compile(
    r"[A-Za-z_]\w*=(?!=)\S.*,|['\"][\w.-]+['\"]\s*:\s*"
    r"(?:[-\d.e]+|true|false|null|None|True|False|'[^']*'|\"[^\"]*\"),?"
    r"|(?:.*\s)?(?:Namespace|\w*(?:Arguments|Config))\(\w+=.*"
)
_BENIGN = re.compile(
    r"(?i)(?<![\d.])\b0 (?:errors?|failed|failures?)\b|\bno errors? (?:found|occurred|reported)\b"
    r"|^\{'|it/s\]|s/it\]|^\d+%\|"
    r"|\(ignored\)$"
    r"|^frame #\d+: |^Exception raised from \S+ at \S+:\d+ \(most recent call"
    r"|\b(?:error rate|(?:mean|absolute|squared|relative|test|training|validation) error)"
    r"\b[\w ]{0,30}[:=]\s*[-+]?\d"
)


# A bar of tqdm, if something else follows it on the line.
_PROGRESS = re.compile(r"^.*\d%\|.*?\d(?:\.\d+)?\s?(?:\w+/s|s/\w+)[^\]\[]*\](?=\s*\S)")


def begins_something(text: str) -> bool:
    return bool(
        warns(text)
        or re.match(r"[EF]\d{4} |\[E\d* |srun: |slurmstepd: |=====|-----|\+-|\*\*\*|wandb: ", text)
        or signal_of(text)
        or _CPP.match(text)
    )


def signal_of(text: str) -> str:
    """The name of the signal that a line reports, or an empty string."""
    text = text.strip()
    for pattern in _SIGNALS:
        match = pattern.fullmatch(text)
        if match is None:
            continue
        groups = match.groupdict()
        if groups.get("word"):
            return _SIGNAL_WORDS[groups["word"].lower()]
        if groups.get("name"):
            return str(groups["name"])
        number = groups.get("number") or str(int(groups.get("status") or 128) - 128)
        if int(number):
            return _NUMBERS.get(int(number), f"signal {number}")
    return ""


def shows_command(text: str) -> bool:
    """Whether a line is an echoed command, or a setting of a printed configuration."""
    text = text.strip()
    return bool(_ECHOED.match(text) or _SETTING.fullmatch(text))


def without_command(text: str) -> str:
    """A text without the list of words of a command, as ``['python', 'train.py']``."""
    return _WORDS_OF_COMMAND.sub("[…]", text)


@dataclass(frozen=True, slots=True)
class Report:
    """What a line outside of any traceback reports."""

    kind: Kind
    name: str = ""
    message: str = ""


def report_of(text: str, following: str) -> Report | None:
    """Return what a line reports, or None. ``following`` is the next line of the log."""
    text = _PROGRESS.sub("", text.strip())
    if not text or _BENIGN.search(text):
        return None
    text = without_command(text)
    if _MEMORY.search(text):
        return Report("memory", "SIGKILL")
    if _LIMIT.search(text):
        return Report("limit")
    cpp = _CPP.match(text)
    if cpp:
        what = _WHAT.match(following)
        return Report("exception", cpp["name"], what["message"] if what else "")
    signal = signal_of(text)
    if signal:
        return Report("signal", signal)
    if warns(text):
        return Report("warning")
    refusal = _refusal(text)
    if refusal:
        return Report("usage", message=refusal)
    if _EXIT.fullmatch(text) and not _REASON.search(text):
        return Report("exit")
    if _ERROR.search(text):
        return Report("error")
    return None


def _refusal(text: str) -> str:
    """What a program or a shell refuses of a command line; empty if the line says nothing so."""
    usage = _USAGE.fullmatch(text)
    if usage and _USAGE_WORDS.search(usage["message"]):
        return usage["message"]
    if _OPTION_RUN.search(text):
        return text
    return ""


def warns(text: str) -> bool:
    return bool(_WARNING.search(text))
