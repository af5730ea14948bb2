"""From the text of an error to its cause: ``doctor --symptom``, and the report of a failed trial.

``cputune/text/failure_log.py`` finds the failure that decides. The first of these that knows it
explains it:

1. a row of ``known_errors/``, each with the thread that reports it;
2. the interface tables (``interface_errors.py``): which release has the argument, the name, the
   option;
3. a check that quotes the error in the "Symptom:" lines of its docstring;
4. else its own text: type, message, place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from cputune.doctor import diagnose
from cputune.doctor.finding import Check, Finding, Severity, checks_of, fault
from cputune.doctor.interface_errors import answer_of, raised_by
from cputune.doctor.other_libraries import distribution_of
from cputune.errors import CannotError
from cputune.host import Interpreter
from cputune.host.facts import HostFacts
from cputune.text.documents import packaged_toml, record_of
from cputune.text.failure_log import (
    Failure,
    FailureLog,
    Role,
    Standing,
    read_failures,
    standing_by_kind,
)

LONGEST_LINE = 300  # what is shown of it
# Only the end of a log is read: the last exception is there.
MOST_CHARACTERS = 1 << 20

# Every line of a text this short may be an error that somebody typed; a program prints its last
# words in that many.
TYPED_LINES = 5

# How far from a failure its evidence may be: a pip list or the banner of a job is further away.
NEAR_LINES = 60

# Their rows are tried in this order.
TABLES = ("imports", "versions", "devices", "ranks", "launchers", "system", "memory")

# Tried after the interface tables.
LAST_TABLES = ("packages", "hub", "data", "checkpoints", "scripts", "training")


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """An error that people report: how it is recognized, its cause and its fix.

    Attributes:
        pattern: a case-insensitive regular expression for the type and message of an exception,
            or for the line of another failure.
        fix: ``{0}`` is the first group of the pattern, also in ``command``.
        package: that group is the name of a package, and is replaced by what pip calls it.
        unless: the row is another failure's if this is in the text.
        at: the row needs a call that this matches, as ``file function: code``.
        near: the row needs this in the calls of the failure, or within 60 lines of it.
        anywhere: the row needs this in the log: how the job was started, what it warned of.
        role: whether the failure is a cause, or follows from another one of the log.
        brings: later failures of the log that this matches follow from the row's failure, although
            the script went on after it.
        finds: codes of checks that find the cause beforehand.
        contradicts: what is installed here has what the error lacks.
        hopeless: no plan avoids it; the script or its packages have to change.
        goes_on: training continues.
        harmless: training continues, and there is nothing to do.
    """

    name: str
    pattern: str
    title: str
    cause: str
    fix: str
    finds: tuple[str, ...]
    source: str
    command: str | None = None
    unless: str | None = None
    at: str | None = None
    near: str | None = None
    anywhere: str | None = None
    role: Role = "cause"
    brings: str | None = None
    package: bool = False
    contradicts: bool = False
    hopeless: bool = False
    goes_on: bool = False
    harmless: bool = False

    @property
    def as_text(self) -> str:
        """Title, fix and check in a line."""
        before = ""
        if self.finds:
            before = f" (cputune doctor finds it: {self.finds[0]})"
        return f"{self.title}: {self.fix}{before}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A failure and its explanation; ``is_known`` is False if the error text is only repeated."""

    failure: Failure
    symptom: Symptom
    is_known: bool = True


@cache
def symptoms(names: tuple[str, ...] = TABLES + LAST_TABLES) -> tuple[Symptom, ...]:
    """The rows of these tables, in the order in which they are tried."""
    tables = (packaged_toml("cputune.doctor", f"known_errors/{name}.toml") for name in names)
    rows: list[Symptom] = []
    for table in tables:
        for row in table["errors"]:
            rows.append(record_of(Symptom, row))
    return tuple(rows)


def quotes_of(check: Check) -> tuple[str, ...]:
    """The errors that a check quotes in its "Symptom:" lines; ``…`` matches anything."""
    symptom = re.search(r"Symptom:(.*?)(?:\n\n|$)", check.story, re.DOTALL)
    if symptom:
        return tuple(re.findall(r'"([^"]+)"', " ".join(symptom[1].split())))
    return ()


@cache
def quoted() -> tuple[tuple[Symptom, tuple[re.Pattern[str], ...]], ...]:
    """The checks as explanations of the errors that they quote."""
    from cputune.doctor.registry import all_checks  # which lists the check of this module, too

    rows = []
    for check in all_checks():
        quotes = quotes_of(check)
        if quotes:
            rows.append((_symptom_of(check), tuple(map(_quote_pattern, quotes))))
    return tuple(rows)


def _symptom_of(check: Check) -> Symptom:
    cause = re.search(r"Cause:(.*?)(?:\n\n|$)", check.story, re.DOTALL)
    return Symptom(
        name=check.code,
        pattern="",
        title=check.title,
        cause=" ".join(cause[1].split()) if cause else "",
        fix=check.remedy[:1].lower() + check.remedy[1:].rstrip("."),
        finds=(check.code,),
        source=check.source,
    )


def _quote_pattern(quote: str) -> re.Pattern[str]:
    if re.fullmatch(r"[A-Z]?[a-z]+(?: [a-z]+)?", quote):
        # One or two plain words, such as "connection refused", are in many sentences.
        return re.compile(rf"^{quote}$", re.IGNORECASE | re.MULTILINE)
    parts = (_word_pattern(part.strip()) for part in quote.split("…"))
    return re.compile(r"\s*.*?\s*".join(parts), re.IGNORECASE)


def _word_pattern(part: str) -> str:
    """A pattern for these words that does not match inside a longer word."""
    before = ""
    if part[:1].isalnum():
        before = r"(?<!\w)"
    after = ""
    if part[-1:].isalnum():
        after = r"(?!\w)"
    return before + re.escape(part) + after


# --- explaining -------------------------------------------------------------------------


def explain(text: str, versions: Mapping[str, str] | None = None) -> Explanation | None:
    """What ended the job that wrote this text; None if the text shows no failure.

    ``text`` is a log, or an error message. ``versions`` are used if the log names none.
    """
    log = read_failures(text[-MOST_CHARACTERS:])
    installed = {**(versions or {}), **log.versions}
    decisive = log.decide(_standings(installed))
    if decisive is None:
        return _of_words(log, installed) or _named(_typed_exception(log))
    brought_by = _brought_by(decisive, log, installed)
    if brought_by is not None:
        return brought_by
    explanation = explain_failure(decisive, installed)
    if explanation.is_known and not explanation.symptom.goes_on:
        return explanation
    if decisive.kind in ("error", "exit", "launcher"):
        return _of_words(log, installed) or explanation
    return explanation


def _standings(versions: Mapping[str, str]) -> Callable[[Failure], Standing]:
    """What the rows know of each failure of a log; each is looked up once."""

    @cache
    def by_rows(failure: Failure) -> Standing:
        if failure.kind in ("launcher", "exit", "warning"):
            return standing_by_kind(failure)
        symptom = _known_symptom(failure, versions)
        if symptom is None:
            return standing_by_kind(failure)
        role = symptom.role
        if symptom.goes_on and failure.kind == "error":
            role = "note"
        return Standing(role=role, known=True)

    return by_rows


def _brought_by(
    decisive: Failure, log: FailureLog, versions: Mapping[str, str]
) -> Explanation | None:
    """An earlier failure after which the script went on: no environment, so no module."""
    for failure in log.failures:
        if failure.line >= decisive.line:
            break
        symptom = _known_symptom(failure, versions)
        if symptom is None or symptom.brings is None:
            continue
        if re.search(symptom.brings, _message_of(decisive), _FLAGS):
            return Explanation(failure=failure, symptom=symptom)
    return None


def explain_failure(failure: Failure, versions: Mapping[str, str]) -> Explanation:
    """The explanation of one failure, or of what it was raised from; else its own text."""
    known: list[Explanation] = []
    for each in failure.chain:
        symptom = _known_symptom(each, versions)
        if symptom is not None:
            known.append(Explanation(failure=each, symptom=symptom))
    for explanation in known:
        if explanation.symptom.role == "cause":
            return explanation
    first = failure.chain[-1]
    if known and (known[0].symptom.role != "reporter" or known[0].failure is first):
        return known[0]
    if known:
        return _in_its_words(first)  # what is only reported says less than what was raised first
    return _refusal(failure) or _in_its_words(failure)


def _of_words(log: FailureLog, versions: Mapping[str, str]) -> Explanation | None:
    """Failures of a log without exception: its error lines, else its warnings."""
    errors = [failure for failure in log.failures if failure.kind == "error"]
    lines: list[Failure] = []
    if len(log.lines) <= TYPED_LINES:
        for number, text in _numbered(log):
            lines.append(_typed_line("error", number, text, log))
    later: list[Explanation] = []
    for failure in errors + lines:
        symptom = _known_symptom(failure, versions)
        if symptom is not None and not symptom.goes_on:
            return Explanation(failure=failure, symptom=symptom)
        if symptom is not None:
            later.append(Explanation(failure=failure, symptom=symptom))
    last = _last_words(log)
    if last is None and later:
        last = later[0]
    if last is not None or errors:
        return last
    return _warned(log)


def _warned(log: FailureLog) -> Explanation | None:
    """A line after which training goes on, in a log without errors."""
    for number, text in _numbered(log):
        failure = _typed_line("warning", number, text, log)
        symptom = _row(failure, TABLES, goes_on=True)
        if symptom is not None:
            return Explanation(failure=failure, symptom=symptom)
    return None


def _last_words(log: FailureLog) -> Explanation | None:
    """What the last lines of a log say that have no form of an error, as those of mpirun."""
    if len(log.lines) <= TYPED_LINES:
        return None
    for number, text in log.last_lines(TYPED_LINES):
        failure = _typed_line("error", number, text, log)
        symptom = _row(failure, TABLES, goes_on=False, begins=True)
        if symptom is not None:
            return Explanation(failure=failure, symptom=symptom)
    return None


def _typed_line(
    kind: Literal["error", "warning"], number: int, text: str, log: FailureLog
) -> Failure:
    return Failure(kind=kind, line=number, text=text.strip(), log=log.text)


_CAMEL = re.compile(r"(?P<name>(?:\w+\.)*[A-Z][a-z]\w*[A-Z]\w*): (?P<message>\S.*)")


def _typed_exception(log: FailureLog) -> Failure | None:
    """The last of a few typed lines that has the form of an exception."""
    if len(log.lines) > TYPED_LINES:
        return None
    for number, text in reversed(list(_numbered(log))):
        match = _CAMEL.fullmatch(text.strip())
        if match is not None and not match["name"].endswith("Warning"):
            return Failure(
                kind="exception",
                line=number,
                text=text.strip(),
                name=match["name"],
                message=match["message"],
            )
    return None


def _numbered(log: FailureLog) -> Iterator[tuple[int, str]]:
    return enumerate(log.lines, start=1)


def _known_symptom(failure: Failure, versions: Mapping[str, str]) -> Symptom | None:
    """The explanation of a failure, with all checks that quote it in ``finds``."""
    message = _message_of(failure)
    quoting = _quoting(message)
    # Special rows come before the interfaces of releases, and these before general rows.
    symptom = _row(failure, TABLES)
    if symptom is None:
        symptom = _removed_column(failure)
    if symptom is None:
        symptom = _of_interface(failure, versions)
    if symptom is None:
        symptom = _row(failure, LAST_TABLES)
    if symptom is None and quoting:
        # A row that has these words lacks its evidence, and a quote needs none.
        lacks_evidence = _nearest(failure) is not None and not _is_quote(message)
        if not lacks_evidence:
            symptom = quoting[0]
    if symptom is None:
        return None
    symptom = _asked_by_library(symptom, failure)
    codes = list(symptom.finds) + [check.name for check in quoting]
    return replace(symptom, finds=tuple(dict.fromkeys(codes)))


def _asked_by_library(symptom: Symptom, failure: Failure) -> Symptom:
    """Whose attribute is not there: an object's own, or one that a library asks another for."""
    if symptom.name != "attribute-absent":
        return symptom
    absent = re.search(r"has no attribute '(\w+)'", failure.message)
    asks_itself = [one for one in failure.frames if absent and f"self.{absent[1]}" in one.code]
    if absent is not None and asks_itself:
        return replace(
            symptom,
            title=f"An object lacks its own {absent[1]}: it was not set up by the code that runs",
            cause="it was saved (pickled) by another release of its library and loaded by this "
            "one, a step that sets it (load, train, setup) was not called, or a class of yours "
            "lacks super().__init__().",
            fix=f"call what sets {absent[1]} before this line; make an object that was loaded from "
            "a file anew and save it again, or install the release that saved it",
        )
    asking = ""
    for frame in failure.frames:
        if frame.package not in ("python", "torch"):  # Module.__getattr__ only raises it
            asking = frame.package
    if not asking:
        return symptom
    return replace(
        symptom,
        fix=f"upgrade {asking}, whose code asks for it, or install the releases that it names in "
        "its requirements",
        command=f"pip install -U {distribution_of(asking)}",
    )


def _removed_column(failure: Failure) -> Symptom | None:
    """The answer to a KeyError of a data collator or data set that a Trainer has read."""
    files = [frame.file for frame in failure.frames]
    read = any(file.endswith("/data/_utils/fetch.py") for file in files)
    by_trainer = any(file.endswith(("/trainer.py", "/sft_trainer.py")) for file in files)
    if failure.type_name != "KeyError" or not (read and by_trainer):
        return None
    (row,) = (one for one in symptoms(LAST_TABLES) if one.name == "columns-removed")
    return replace(row, title=f"{row.title}: {failure.message.strip()}")


def _quoting(message: str) -> list[Symptom]:
    """The checks that quote an error, the one with the longest quote first."""
    quoting = []
    for symptom, patterns in quoted():
        lengths = []
        for pattern in patterns:
            if pattern.search(message):
                lengths.append(len(pattern.pattern))
        if lengths:
            quoting.append((max(lengths), symptom))
    return [symptom for _, symptom in sorted(quoting, key=lambda pair: -pair[0])]


def _is_quote(message: str) -> bool:
    """Whether the message is a quote of a check alone, as somebody types it."""
    for _, patterns in quoted():
        if any(pattern.fullmatch(message.strip()) for pattern in patterns):
            return True
    return False


def _of_interface(failure: Failure, versions: Mapping[str, str]) -> Symptom | None:
    answer = answer_of(failure, versions)
    if answer is None:
        return None
    return Symptom(
        name="interface",
        pattern="",
        title=answer.title,
        cause=answer.cause,
        fix=answer.fix,
        finds=(),
        source=answer.source,
        command=answer.command,
        contradicts=answer.contradicts,
        hopeless=True,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """A row with its patterns compiled."""

    symptom: Symptom
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None
    at: re.Pattern[str] | None
    near: re.Pattern[str] | None
    anywhere: re.Pattern[str] | None

    def has_evidence(self, failure: Failure, message: str) -> bool:
        """Whether the failure shows what the row needs beside its pattern."""
        if self.unless is not None and self.unless.search(message):
            return False
        if self.near is not None and self.near.search(_around(failure, message)) is None:
            return False
        if self.anywhere is not None and self.anywhere.search(failure.log or message) is None:
            return False
        return self.at is None or any(map(self.at.search, _calls_of(failure)))


def _calls_of(failure: Failure) -> list[str]:
    return [f"{one.file} {one.function}: {one.code}" for one in failure.frames]


def _around(failure: Failure, message: str) -> str:
    """The calls of a failure, and the lines of its log that are near it."""
    if not failure.log:
        return message
    lines = failure.log.splitlines()
    first = max(failure.line - 1 - NEAR_LINES, 0)
    return "\n".join(_calls_of(failure) + lines[first : failure.line + NEAR_LINES])


@cache
def _compiled(tables: tuple[str, ...]) -> tuple[_Row, ...]:
    rows = []
    for row in symptoms(tables):
        pattern = re.compile(row.pattern, _FLAGS)
        optional = map(_optional, (row.unless, row.at, row.near, row.anywhere))
        rows.append(_Row(row, pattern, *optional))
    return tuple(rows)


_FLAGS = re.IGNORECASE | re.MULTILINE


def _optional(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    return re.compile(pattern, _FLAGS)


# What a sentence follows in a line: nothing, or the name of a program.
_BEFORE_A_SENTENCE = re.compile(r"(?:.*[:\])!] +)?\S{0,3}")


def _row(
    failure: Failure,
    tables: tuple[str, ...],
    *,
    goes_on: bool | None = None,
    begins: bool = False,
) -> Symptom | None:
    """The first row of these tables that matches a failure, with its groups filled in.

    ``begins``: what it matches begins a sentence.
    """
    message = _message_of(failure)
    for row in _compiled(tables):
        if goes_on is not None and row.symptom.goes_on is not goes_on:
            continue
        match = row.pattern.search(message)
        if match is None:
            continue
        if begins and not _BEFORE_A_SENTENCE.fullmatch(message, 0, match.start()):
            continue
        if row.has_evidence(failure, message):
            first = next((group for group in match.groups() if group), "")
            if row.symptom.package:
                first = distribution_of(first)
            return _filled(row.symptom, first)
    return None


def _filled(row: Symptom, first: str) -> Symptom:
    command = row.command
    if command is not None:
        command = command.replace("{0}", first)
    return replace(
        row,
        title=row.title.replace("{0}", first).removesuffix(": "),
        cause=row.cause.replace("{0}", first),
        fix=row.fix.replace("{0}", first),
        command=command,
    )


def _nearest(failure: Failure) -> Symptom | None:
    """A row whose words are in the text without the evidence that it needs."""
    message = _message_of(failure)
    for row in _compiled(TABLES + LAST_TABLES):
        match = row.pattern.search(message)
        if match is not None and not row.has_evidence(failure, message):
            return row.symptom
    return None


def rows_of(failure: Failure) -> tuple[str, ...]:
    """The names of all rows that know a failure, in the order in which they are tried."""
    message = _message_of(failure)
    names = []
    for row in _compiled(TABLES + LAST_TABLES):
        if row.pattern.search(message) and row.has_evidence(failure, message):
            names.append(row.symptom.name)
    return tuple(names)


def _message_of(failure: Failure) -> str:
    """The text that patterns are matched with; for a signal also its name."""
    if failure.kind in ("signal", "memory"):
        return f"{failure.text}\n{failure.name}"
    return failure.whole


# --- an unknown error ------------------------------------------------------------------


def _named(failure: Failure | None) -> Explanation | None:
    if failure is None:
        return None
    return _in_its_words(failure)


def _in_its_words(failure: Failure) -> Explanation:
    """A failure repeated: its type, its message and the line that raised it."""
    raised = place_of(failure)
    title = failure.title[:LONGEST_LINE]
    cause = "the tables do not contain this error."
    fix = "search for the message in the issues of the package that raises it"
    called = []
    for frame in failure.frames:
        if not frame.package:
            called.append(frame)
    if failure.kind in ("exit", "launcher"):
        title = "A rank has failed, and its own error is not in this text"
        cause = "a launcher only reports that a process has ended."
        fix = "look for the first error of all ranks; torchrun --log-dir logs keeps each rank's log"
    elif called:
        at = f"{called[-1].file}, line {called[-1].line}"
        inside = not failure.frames[-1].package
        if inside:
            fix = f"look at {at}: the exception is raised there"
        else:
            fix = f"look at {at}, which calls it"
    if raised and failure.kind == "exception":
        title += f", raised in {raised}"
    releases = raised_by(failure)
    if releases:
        cause = f"{releases}: the library refuses this by itself, and its message says why."
        fix = "do what the message says" + (f"; {fix}" if called else "")
    source = ""
    near = _nearest(failure)
    if near is not None:
        source = near.source
        cause += f" The nearest thread is {source}, but this text does not show its cause."
    symptom = Symptom(
        name="unknown", pattern="", title=title, cause=cause, fix=fix, finds=(), source=source
    )
    return Explanation(failure=failure, symptom=symptom, is_known=False)


# Words with which a message says what to do.
_INSTRUCTION = re.compile(
    r"\b(?:please|you (?:have to|need to|must|should|can)|must (?:be|have|not)|should (?:be|not)"
    r"|make sure|try (?:to|using|with)|instead|has to be|have to be|cannot be used (?:with|when)"
    r"|is not supported|are not supported|set (?:it|`\w|--)|add `|pass `|use `)",
    _FLAGS,
)


# A command that a message gives in quotes.
_COMMAND = re.compile(r"[`'\"]((?:python -m )?(?:pip|conda|apt(?:-get)?) install [^`'\"\n]+)[`'\"]")


def _refusal(failure: Failure) -> Explanation | None:
    """What a library refuses on purpose, if its message says what to do instead."""
    if failure.kind != "exception" or not _INSTRUCTION.search(failure.message):
        return None
    by = raised_by(failure)
    package = place_of(failure)
    in_library = bool(failure.frames) and bool(failure.frames[-1].package)
    if not by and not (in_library and package not in ("", "python", "torch")):
        return None
    told = _instruction_of(failure.message)
    wanted = re.split(r"[.!?] +", told)[-1]
    command = _COMMAND.search(failure.message)
    symptom = Symptom(
        name="refusal",
        pattern="",
        title=f"{failure.type_name}: {told}"[:LONGEST_LINE],
        cause=f"{by or package}: it refuses this on purpose, and says what it wants.",
        fix=f"do what its message says{_called_from(failure)}: {wanted.rstrip('.')}",
        command=command[1] if command else None,
        finds=(),
        source="",
        hopeless=True,
    )
    return Explanation(failure=failure, symptom=symptom)


def _instruction_of(message: str) -> str:
    """The sentences of a message from the first to the one that says what to do."""
    text = " ".join(message.split())
    match = _INSTRUCTION.search(text)
    if match is None:
        return text
    end = re.search(r"[.!?](?: |$)", text[match.end() :])
    if end is None:
        return text
    return text[: match.end() + end.start()]


def _called_from(failure: Failure) -> str:
    """Your own line that leads to a failure, to be added to a sentence; empty if none is shown."""
    own = [frame for frame in failure.frames if not frame.package]
    if not own:
        return ""
    return f", at the call in {own[-1].file}, line {own[-1].line}"


def place_of(failure: Failure) -> str:
    """``train.py, line 3`` or ``datasets``; empty if not known."""
    if not failure.frames:
        return ""
    last = failure.frames[-1]
    frames = []
    for frame in failure.frames:
        if frame.package != "python":
            frames.append(frame)
    if frames:
        package = frames[-1].package
    else:
        package = last.package
    if package:
        return package
    return f"{last.file.rpartition('/')[2]}, line {last.line}"


@fault("symptom", Severity.ERROR)
def known_error() -> None:
    """An error that is known, or at least named

    Symptom: the log of a job that ended, or an error message.

    Cause: the finding describes it. If a check finds that cause on this machine, its finding
    follows with this machine's numbers.

    Remedy: Do what the finding says; the check that it names finds the cause beforehand.

    Source: https://github.com/pytorch/pytorch/issues
    """


def judge_symptom(text: str, facts: HostFacts) -> Iterator[Finding]:
    """The failure in a text with its fix, then what this machine shows of the cause.

    Raises CannotError if the text shows no failure.
    """
    installed = facts.installed_versions
    ours = _is_of_environment(text, facts.training_python)
    if not facts.recorded and ours is False:
        installed = {}  # what is installed here did not run
    explanation = explain(text, installed)
    if explanation is not None and ours is None and explanation.symptom.contradicts:
        explanation = _with_other_release(explanation, explain(text))
    if explanation is None:
        if read_failures(text[-MOST_CHARACTERS:]).ends_in_traceback:
            raise CannotError(
                "the text ends inside a traceback, before the line that says what failed",
                hint="give the lines after it too, down to the name of the exception",
            )
        count = len([line for line in text.splitlines() if line.strip()])
        raise CannotError(
            f"no error in this text ({count} lines): warnings and prints do not end a job",
            hint="give more of the log, with its last lines: --symptom train.log, or -",
        )
    symptom = explanation.symptom
    here = [finding for finding in diagnose(facts).findings if finding.code in symptom.finds]
    # A command with this machine's numbers is in its own finding.
    others = {finding.command for finding in here} - {None, symptom.command}
    command = None
    if not others:
        command = symptom.command
    yield Finding(
        code=known_error.code,
        severity=_severity(symptom),
        title=symptom.title,
        evidence=_evidence(explanation, text, installed),
        remedy=f"{symptom.fix[:1].upper()}{symptom.fix[1:]}.",
        command=command,
        source=symptom.source or known_error.source,
    )
    yield from here


_INSTALLED_IN = re.compile(
    r"(?:[A-Za-z]:\\|[~/])[^\s\"'():]*?[/\\](?:site|dist)-packages(?=[/\\])"
    r"|(?<=\()/[^\s\"'():]+(?=/\w+/__init__\.py\))"  # of what could not be imported from
)


def _is_of_environment(text: str, python: Interpreter) -> bool | None:
    """Whether the text names folders of packages of this Python; None if it names none at all."""
    folders = set(_INSTALLED_IN.findall(text[-MOST_CHARACTERS:]))
    for folder in folders:
        searched = any(path.endswith(folder.lstrip("~")) for path in python.paths)
        if searched or folder.startswith(f"{python.prefix}/"):
            return True
    return False if folders else None


def _with_other_release(here: Explanation, elsewhere: Explanation | None) -> Explanation:
    """The explanation for a release that is not installed here, which the text rather shows."""
    if elsewhere is None:
        return here
    also = f"if it was this environment: {here.symptom.fix}"
    symptom = replace(elsewhere.symptom, fix=f"{elsewhere.symptom.fix}; {also}")
    return replace(elsewhere, symptom=symptom)


def _severity(symptom: Symptom) -> Severity:
    if symptom.harmless:
        return Severity.ADVICE
    if symptom.goes_on:
        return Severity.WARNING
    return known_error.severity


def _evidence(explanation: Explanation, text: str, installed: Mapping[str, str]) -> str:
    """The line, if it was raised, its cause and the checks that find it."""
    failure, symptom = explanation.failure, explanation.symptom
    if len(failure.text) <= LONGEST_LINE:
        line = failure.text
    else:
        line = failure.text[:LONGEST_LINE] + "…"
    several = len(text.splitlines()) > 1
    where = ""
    if several:
        where = f"line {failure.line}: "
    rank = ""
    if failure.rank is not None:
        rank = f"rank {failure.rank}, "
    evidence = f"{rank}{where}{line}"
    raised = place_of(failure)
    if raised:
        version = installed.get(raised)
        evidence += (
            f" (raised in {raised}; {version} is installed here)"
            if version
            else f" (raised in {raised})"
        )
    evidence = f"{evidence.rstrip('.:!')}: {symptom.cause}"
    if symptom.goes_on:
        evidence += " Training goes on."
    if symptom.finds:
        evidence += f" Found beforehand by: {', '.join(symptom.finds)}."
    return evidence


CHECKS = checks_of(__name__)
