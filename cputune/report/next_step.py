"""The "Do now" of a diagnosis: one command, a fix, or a sentence that begins with "nothing"."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from cputune.doctor import Diagnosis, Finding, Severity

if TYPE_CHECKING:
    from cputune.doctor.hosts import HostsDiagnosis
    from cputune.host.facts import HostFacts

MOST_COMMANDS = 2  # of a finding, in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What a diagnosis is about, as on the command line.

    Attributes:
        stack: named versions, or "installed" for those of the environment.
        root: the folder of a recorded machine.
        options: options that ``doctor`` and ``tune`` share, such as ``--hosts a,b``.
    """

    file: str | None = None
    stack: str | None = None
    symptom: bool = False
    root: str | None = None
    launch: tuple[str, ...] = ()
    pid: int | None = None
    options: tuple[str, ...] = ()

    @property
    def is_machine(self) -> bool:
        """Whether it is about a machine, and not a file, versions, an error text or a job."""
        named = (self.file, self.stack, self.pid)
        return all(what is None for what in named) and not self.symptom


def next_step(diagnosis: Diagnosis | HostsDiagnosis, examined: Examined) -> str:
    """The command to run next, what to do about an error text, or "nothing: ..."."""
    serious = [f for f in diagnosis.findings if f.severity is not Severity.ADVICE]
    if examined.file is not None:
        unread = diagnosis.unread if isinstance(diagnosis, Diagnosis) else ()
        return _for_file(diagnosis.findings, examined, unread)
    if serious:
        return _for_finding(serious[0], diagnosis, examined)
    if examined.pid is not None:
        return _for_no_fault("nothing is wrong with the job that runs")
    if examined.symptom:
        return _for_no_fault("the error text does not indicate a fault of this machine")
    if examined.stack not in (None, "installed") and isinstance(diagnosis, Diagnosis):
        return _install(examined.stack, diagnosis.facts)
    if examined.root is not None:
        return shlex.join(["cputune", "tune", "--dry-run", "--root", examined.root])
    if isinstance(diagnosis, Diagnosis) and diagnosis.facts.recorded:
        return _for_no_fault("run cputune tune on the recorded machine")
    options = examined.options
    if not isinstance(diagnosis, Diagnosis) and not options:
        options = ("--hosts", ",".join(host.name for host in diagnosis.hosts))
    command = ["cputune", "tune"] + list(options)
    if examined.launch:
        command += ["--"] + list(examined.launch)
    return shlex.join(command)


def _for_no_fault(sentence: str) -> str:
    return f"nothing: {sentence}"


def _for_file(findings: tuple[Finding, ...], examined: Examined, unread: tuple[str, ...]) -> str:
    """The command that applies all fixes, or that explains the most severe finding."""
    assert examined.file is not None
    if any(finding.edits for finding in findings):
        command = ["cputune", "doctor", "--check-file", examined.file]
        if examined.stack is not None:
            command += ["--stack", examined.stack]
        if examined.root is not None:
            command += ["--root", examined.root]
        command += list(examined.options) + ["--print-fix"]
        return f"{shlex.join(command)} | {_patch(examined.file)}"
    if any(finding.code != "file-unread" for finding in findings):
        return _explain(findings[0].code)
    if findings:
        return _for_no_fault("what was read is right; the evidence says what was not read")
    if unread:
        return _for_no_fault(f"no fault was found; not read: {', '.join(unread)}")
    return _for_no_fault("the file can be used as it is")


def _patch(file: str) -> str:
    """``patch`` rejects absolute names and ``..`` in a diff, and ends a name at a blank."""
    path = PurePath(file)
    if path.is_absolute() or ".." in path.parts or re.search(r"\s", file):
        return shlex.join(["patch", file])
    return "patch -p0"


def _for_finding(
    finding: Finding, diagnosis: Diagnosis | HostsDiagnosis, examined: Examined
) -> str:
    """The command of a finding if it is for this machine, else the one that explains it."""
    if finding.code == "symptom":
        return finding.command or _for_symptom(finding)
    # A command for one of several hosts, or for a recording, is not for this machine.
    of_a_host = not isinstance(diagnosis, Diagnosis) and not finding.code.startswith("hosts-")
    recorded = isinstance(diagnosis, Diagnosis) and diagnosis.facts.recorded
    elsewhere = of_a_host or recorded
    commands = (finding.command or "").splitlines()
    if elsewhere or not 1 <= len(commands) <= MOST_COMMANDS:
        return _explain(finding.code)
    return " && ".join(commands)


def _for_symptom(finding: Finding) -> str:
    """What to do about an error text: the first part of its fix, with what is in parentheses."""
    parts = finding.remedy.split("; ")
    first = parts.pop(0)
    while parts and first.count("(") > first.count(")"):
        first = f"{first}; {parts.pop(0)}"
    return first.rstrip(".")


def _explain(code: str) -> str:
    return f"cputune doctor --explain {code}"


def _install(stack: str, facts: HostFacts) -> str:
    from cputune.doctor.named_stack import stack_facts
    from cputune.stack import versions_of
    from cputune.stack.version_changes import ORDER, VersionChange

    named = versions_of(stack_facts(stack, facts))
    changes = [(name, named.get(name)) for name in reversed(ORDER)]
    present = tuple((name, version) for name, version in changes if version is not None)
    return VersionChange(says=stack, changes=present, result=named).command() or ""
