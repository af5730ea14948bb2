"""From the text of an error to its cause: ``doctor --symptom``, and what a failed trial says.

The errors stand in ``symptoms.toml``, each with the thread in which it was reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from cputune.doctor import diagnose
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.errors import CannotError
from cputune.host.facts import HostFacts
from cputune.text.documents import packaged_toml, record_of

LONGEST_LINE = 300
MOST_CHARACTERS = 1 << 20
"""Of a log its end is read: the first error stands there, or what follows from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """An error that people report: by which words it is known, its cause and its cure.

    ``finds`` are the codes of the checks that find the cause beforehand. ``hopeless``: no plan
    changes it, the script or its packages have to. ``goes_on``: training does, in spite of it.
    """

    name: str
    pattern: str
    title: str
    cause: str
    cure: str
    finds: tuple[str, ...]
    source: str
    command: str | None = None
    hopeless: bool = False
    goes_on: bool = False

    @property
    def in_words(self) -> str:
        """Title, cure and check in a line."""
        before = f" (cputune doctor finds it: {self.finds[0]})" if self.finds else ""
        return f"{self.title}: {self.cure}{before}"


@cache
def symptoms() -> tuple[Symptom, ...]:
    """All rows of the table, in its order."""
    rows = packaged_toml("cputune.doctor", "symptoms.toml")["symptoms"]
    return tuple(record_of(Symptom, row) for row in rows)


def recognised(text: str) -> dict[Symptom, str]:
    """The errors in a text, each with the first line that shows it, in the order of the text.

    ``{0}`` in a cure is the first group of its pattern.
    """
    found: dict[str, tuple[Symptom, str]] = {}
    known = [(symptom, re.compile(symptom.pattern, re.IGNORECASE)) for symptom in symptoms()]
    for line in text[-MOST_CHARACTERS:].splitlines():
        for symptom, pattern in known:
            if seen := pattern.search(line.strip()):
                cure = symptom.cure.replace("{0}", "".join(seen.groups()[:1]))
                recognition = (replace(symptom, cure=cure), _around(line.strip(), seen))
                found.setdefault(symptom.name, recognition)
                break
    return dict(found.values())


def _around(line: str, seen: re.Match[str]) -> str:
    """The line; of a long one what lies around the words that were found."""
    start = max(0, seen.start() - LONGEST_LINE // 2) if len(line) > LONGEST_LINE else 0
    return line[start : start + LONGEST_LINE]


def cause_of(text: str) -> Symptom | None:
    """The first known error in a text that ends training."""
    return next((symptom for symptom in recognised(text) if not symptom.goes_on), None)


@fault("symptom", Severity.ERROR)
def known_error() -> None:
    """An error whose cause is known

    Symptom: a line of what you gave is one of the errors that people report most of training on
    CPUs.

    Cause: the finding says it. Where a check finds that cause on this machine now, its finding
    stands below, with this machine's numbers.

    Remedy: Do what the finding says; the check that it names finds the cause before it costs hours.

    Source: https://github.com/pytorch/pytorch/issues
    """


def judge_symptom(text: str, facts: HostFacts) -> Iterator[Finding]:
    """The errors in a text with their cures, then what this machine shows of their causes.

    Raises CannotError where none of the known ones stands in it.
    """
    found = recognised(text)
    if not found:
        raise CannotError(
            f"none of the {len(symptoms())} known errors stands in this text "
            f"({len(text.splitlines())} lines)",
            hint="give more of the log, from the first error on: --symptom train.log, or -",
        )
    codes = {code for symptom in found for code in symptom.finds}
    here = [finding for finding in diagnose(facts).findings if finding.code in codes]
    cured = {finding.code for finding in here if finding.command}
    for symptom, line in found.items():
        cause = f"{line}: {symptom.cause}"
        if symptom.finds:
            cause += f" Found beforehand by: {', '.join(symptom.finds)}."
        # A command with this machine's numbers stands with its own finding.
        command = None if cured & set(symptom.finds) else symptom.command
        yield Finding(
            code=known_error.code,
            severity=known_error.severity,
            title=symptom.title,
            evidence=cause,
            remedy=f"{symptom.cure[0].upper()}{symptom.cure[1:]}.",
            command=command,
            source=symptom.source,
        )
    yield from here


CHECKS = checks_of(__name__)
