"""Findings, the checks that produce them, and a Diagnosis, which holds all findings.

A check is one pure function over ``HostFacts``; its docstring is all that people read of it::

    @check("quota-threads", Severity.WARNING)
    def quota_threads(facts: HostFacts) -> Iterator[Finding]:
        '''More threads than the container has CPU time for

        Symptom: …

        Cause: …

        Remedy: Set OMP_NUM_THREADS to the quota, rounded down.

        Source: onyx-dot-app/onyx#12351
        '''
        if facts.limits.cpu_quota is not None and ...:
            yield quota_threads.finding("…", command="export OMP_NUM_THREADS=8")

A fault that other code finds (in a file, in a child) is a ``@fault`` without a body. Codes are
short names in kebab-case and never change meaning.
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import partial
from html import escape
from typing import Any, TypeVar

from cputune.host.facts import HostFacts
from cputune.launch.edit import Edit
from cputune.plans.untried import GAINS, Takes, gain_text
from cputune.text.plain import visible

_Found = TypeVar("_Found", bound="FoundOn")
_PIP = re.compile(r"(^|&& )(?:python3? -m )?pip ", re.MULTILINE)


class Severity(str, Enum):
    """Training fails or is wrong; it is slow; it could be better."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"

    @property
    def rank(self) -> int:
        """0 is the worst."""
        return tuple(Severity).index(self)


def docs_of(code: str) -> str:
    """``checks.md#machine-busy``."""
    return f"checks.md#{code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong or worth doing.

    Attributes:
        evidence: what was seen, with the numbers or the path.
        command: a shell command to paste, or None.
        source: issues as ``owner/repo#n``, or URLs, separated by commas.
        edits: the changes that fix a file.
        dropped: options that the edits leave out, each with the reason.
    """

    code: str
    severity: Severity
    title: str
    evidence: str
    remedy: str
    command: str | None
    source: str
    edits: tuple[Edit, ...] = field(default=(), compare=False)
    dropped: tuple[str, ...] = field(default=(), compare=False)

    @property
    def docs(self) -> str:
        """The place in the documentation: a page of ``docs/`` and its anchor."""
        return docs_of(self.code)

    @property
    def worth(self) -> tuple[float, float] | None:
        """By how many times this advice sped training up, from and to; None if not known."""
        if self.severity is Severity.ADVICE:
            return GAINS.get(self.code)
        return None

    @property
    def worth_words(self) -> str:
        """The gain of the advice in words; empty for faults and for a named stack."""
        if self.severity is not Severity.ADVICE or self.code.startswith("stack-"):
            return ""
        if self.worth is None:
            return "Worth: not known."
        takes: Takes = "your decision" if self.command is None else "one command"
        return f"Worth {gain_text(*self.worth, takes)}."

    def to_json(self) -> dict[str, str | tuple[float, float] | None]:
        """The finding of the ``cputune.doctor/1`` document."""
        fields = asdict(self)
        # They belong to a file that the reader of the document may not have.
        del fields["edits"], fields["dropped"]
        shown = {"severity": self.severity.value, "worth": self.worth, "docs": self.docs}
        return {**fields, **shown}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A fault that can be found, and how.

    Attributes:
        story: symptom and cause.
        find: gets the facts of a machine, or all hosts. Faults of files and children are found
            by other code.
        module: of the check.
        tuned: what ``cputune tune`` tries of the advice, in a word.
        under: if one of these codes is found too, this one follows from it.
    """

    code: str
    severity: Severity
    title: str
    remedy: str
    source: str
    story: str
    module: str
    tuned: str = ""
    under: tuple[str, ...] = ()
    find: Callable[..., Iterable[Finding]] = lambda subject: ()

    def __call__(self, subject: object) -> tuple[Finding, ...]:
        return tuple(self.find(subject))

    def finding(
        self,
        evidence: str,
        *,
        command: str | None = None,
        severity: Severity | None = None,
        title: str | None = None,
        remedy: str | None = None,
        edits: tuple[Edit, ...] = (),
        dropped: tuple[str, ...] = (),
    ) -> Finding:
        """A finding of this check; what is not given is taken from the check."""
        return Finding(
            code=self.code,
            severity=severity or self.severity,
            title=title or self.title,
            evidence=evidence,
            remedy=remedy or self.remedy,
            command=command,
            source=self.source,
            edits=edits,
            dropped=dropped if edits else (),
        )


def check(
    code: str, severity: Severity, *, tuned: str = "", under: tuple[str, ...] = ()
) -> Callable[[Callable[..., Iterable[Finding]]], Check]:
    """Make a Check of a function and its docstring: title, story, remedy and source."""
    return lambda find: replace(
        _described(code, severity, find), find=find, tuned=tuned, under=under
    )


def fault(
    code: str,
    severity: Severity,
    find: Callable[[Check, Any], Iterable[Finding]] | None = None,
    *,
    under: tuple[str, ...] = (),
) -> Callable[[Callable[[], None]], Check]:
    """Make a Check of a function that has only a docstring.

    ``find`` gets the check and the facts or hosts. Without it other code finds the fault.
    """

    def made(named: Callable[[], None]) -> Check:
        described = replace(_described(code, severity, named), under=under)
        if find is None:
            return described
        return replace(described, find=partial(find, described))

    return made


def _described(code: str, severity: Severity, named: Callable[..., object]) -> Check:
    # Under python -OO there are no docstrings: the code is the title then.
    title, _, rest = inspect.cleandoc(named.__doc__ or code).partition("\n\n")
    story, _, end = rest.partition("\n\nRemedy:")
    remedy, _, source = end.partition("\n\nSource:")
    return Check(
        code=code,
        severity=severity,
        title=" ".join(title.split()),
        remedy=" ".join(remedy.split()),
        source=" ".join(source.split()),
        story=story,
        module=named.__module__,
    )


def checks_of(module: str) -> tuple[Check, ...]:
    """The checks of a module, in its order."""
    there = vars(sys.modules[module]).values()
    checks: list[Check] = []
    for value in there:
        if isinstance(value, Check) and value.module == module:
            checks.append(value)
    return tuple(checks)


MOST_SHOWN = 8  # findings of a short form


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FoundOn:
    """Findings, the worst first; ``hidden`` are those that --only or --ignore leaves out."""

    findings: tuple[Finding, ...]
    hidden: tuple[Finding, ...] = ()

    def only(self: _Found, chosen: Callable[[Finding], bool]) -> _Found:
        """The same with the chosen findings; the others become ``hidden``."""
        kept = tuple(finding for finding in self.findings if chosen(finding))
        hidden = tuple(finding for finding in self.findings if not chosen(finding))
        return replace(self, findings=kept, hidden=hidden)

    @property
    def summary(self) -> dict[str, int]:
        """The number of findings by severity."""
        counts: dict[str, int] = {}
        for s in Severity:
            counts[s.value] = sum(f.severity is s for f in self.findings)
        return counts

    def __repr__(self) -> str:
        lines = [f"<cputune.{type(self).__name__}: {self._counts() or 'nothing is wrong'}>"]
        for finding in self.findings[:MOST_SHOWN]:
            lines.append(f"{finding.severity.value:7} {visible(finding.title)}  [{finding.code}]")
        more = len(self.findings) - MOST_SHOWN
        if more > 0:
            lines.append(f"and {more} more: .findings")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """A table of the findings for a notebook, the worst first."""
        rows = []
        for finding in self.findings:
            command = ""
            if finding.command is not None:
                command = f"<pre>{escape(finding.command)}</pre>"
            text = f"<b>{escape(finding.title)}</b><br>{escape(finding.evidence)}"
            text += f"<br><i>{escape(finding.remedy)}</i>{command}"
            cells = (finding.severity.value, text, f"<code>{finding.code}</code>")
            left = ' style="text-align:left"'  # the style sheet of Jupyter aligns to the right
            rows.append("<tr>" + "".join(f"<td{left}>{cell}</td>" for cell in cells) + "</tr>")
        return f"<p>{self._counts() or 'Nothing is wrong.'}</p><table>{''.join(rows)}</table>"

    def _counts(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in self.summary.items() if count)

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of this severity or worse."""
        return tuple(f for f in self.findings if f.severity.rank <= severity.rank)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diagnosis(FoundOn):
    """Findings about one machine.

    ``recipe``: what a named recipe needs. ``unread``: the scripts of a file that are not here.
    """

    facts: HostFacts
    recipe: str = ""
    unread: tuple[str, ...] = ()

    def for_python(self, executable: str) -> Diagnosis:
        """The same, with pip commands for the environment of this Python."""
        pip = f"{shlex.quote(executable)} -m pip "
        return self._typed(lambda command: re.sub(_PIP, lambda match: match[1] + pip, command))

    def for_root(self) -> Diagnosis:
        """The same without sudo, which an image often lacks."""
        return self._typed(lambda command: re.sub(r"\bsudo ", "", command))

    def _typed(self, change: Callable[[str], str]) -> Diagnosis:
        findings = (
            replace(finding, command=finding.command and change(finding.command))
            for finding in self.findings
        )
        return replace(self, findings=tuple(findings))


def findings_of(checks: Iterable[Check], subject: object) -> Iterator[Finding]:
    """Yield what each check finds in the subject: facts, a launch, the hosts."""
    for check in checks:
        yield from check(subject)


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each finding once, the worst first; of equal severity the one with the largest gain first."""

    def place(finding: Finding) -> tuple[int, float]:
        return finding.severity.rank, -(finding.worth or (1.0, 1.0))[0]

    return tuple(sorted(dict.fromkeys(findings), key=place))
