"""The remedies of a diagnosis as one shell script that can be sourced or read.

Only commands that change nothing but the shell, or install a package, are active; all others are
comments, to be run by hand. The variables that the script sets may lead to further findings. These
are cured in the same script, so that a second one has nothing to add.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from cputune.doctor import Diagnosis, Finding, diagnose
from cputune.facts import HostFacts
from cputune.text import visible

_HARMLESS = re.compile(
    r"(export [A-Za-z_]\w*=|unset [A-Za-z_]\w*( [A-Za-z_]\w*)*$|ulimit -S?n |source |\. "
    r"|('[^']+' -m |\S+ -m )?pip install )"
)
_MOST_ROUNDS = 4
_HEAD = """#!/usr/bin/env bash
# What cputune doctor advises for this machine. Read it, then source it in the
# shell that trains:  . ./fix.sh
# Lines that would change the system, or remove anything, are comments.
# shellcheck disable=SC1090,SC1091
"""


def fix_script(
    diagnosis: Diagnosis, *, chosen: Callable[[Finding], bool] = lambda finding: True
) -> str:
    """A bash script of every remedy, the most severe first; it passes ``bash -n``.

    ``chosen`` says which of the findings to cure that the script's own variables would cause.
    """
    facts, findings, lines = diagnosis.facts, diagnosis.findings, [_HEAD]
    for number in range(_MOST_ROUNDS):
        if number and findings:
            lines.append("# With the variables above set, this comes up:\n")
        cures = _Cures()
        lines += [f"{_section(finding, cures)}\n" for finding in findings]
        facts = _with_variables(facts, cures.variables)
        found = filter(chosen, diagnose(facts).findings)
        findings = tuple(finding for finding in found if _changes(finding, facts))
        if not findings:
            break
    lines += _epilogue(diagnosis, facts, chosen)
    return "\n".join(lines)


@dataclass(slots=True)
class _Cures:
    """What earlier commands of the script do: variables that they set (None: unset), the rest."""

    variables: dict[str, str | None] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)

    def take(self, command: str) -> bool:
        """Note what a command does; False where an earlier, worse finding needs the opposite."""
        if "pip install" in command and "--no-deps" not in command:
            command = "pip install"
        wanted = _variables(command)
        if self.variables.keys() & wanted.keys() or command in self.others:
            return False
        self.variables |= wanted
        self.others.add(command)
        return True


def _section(finding: Finding, cures: _Cures) -> str:
    """The finding as comments and its command."""
    lines = [f"# {finding.severity.value}: {_one_line(finding.title)} [{finding.code}]"]
    lines += [f"#   {_one_line(finding.evidence)}", f"#   {_one_line(finding.remedy)}"]
    for command in _commands(finding):
        if not _harmless(command):
            lines.append(f"# by hand: {command}")
        elif not cures.take(command):
            lines.append(f"# instead of the above: {command}")
        else:
            lines.append(command)
    return "\n".join(lines)


def _epilogue(
    diagnosis: Diagnosis, facts: HostFacts, chosen: Callable[[Finding], bool]
) -> Iterator[str]:
    """The lines at the end: what is still wrong when the script has been sourced."""
    if not diagnosis.findings:
        yield "# Nothing to mend.\n"
    elif any("pip install" in (finding.command or "") for finding in diagnosis.findings):
        yield "# Packages change: run cputune doctor again when they are installed.\n"
    left = dict.fromkeys(f.code for f in diagnose(facts).findings if chosen(f))
    if left and diagnosis.findings:
        yield f"# No variable cures: {', '.join(left)}\n"


def _commands(finding: Finding) -> tuple[str, ...]:
    lines = [visible(line).strip() for line in (finding.command or "").splitlines()]
    if not all(map(_is_whole, lines)):  # a quoted line break: what follows is no command
        return (visible(finding.command or ""),)
    return tuple(line for line in lines if line)


def _is_whole(line: str) -> bool:
    try:
        shlex.split(line)
    except ValueError:
        return False
    return True


def _changes(finding: Finding, facts: HostFacts) -> bool:
    """Whether a remedy of this finding sets a variable to a new value."""
    wanted = {
        name: value
        for command in _commands(finding)
        if _harmless(command)
        for name, value in _variables(command).items()
    }
    return any(facts.environment.get(name) != value for name, value in wanted.items())


def _variables(command: str) -> dict[str, str | None]:
    """What ``export A=1 B=2`` and ``unset A B`` do to variables; empty for other commands.

    Also empty for what only a shell can expand, such as PATH=…:"$PATH".
    """
    words = shlex.split(command)
    if words[0] == "unset":
        return dict.fromkeys(words[1:])
    pairs = (word.partition("=") for word in words[1:]) if words[0] == "export" else ()
    return {name: value for name, _, value in pairs if "$" not in value}


def _with_variables(facts: HostFacts, variables: dict[str, str | None]) -> HostFacts:
    merged = {**facts.environment, **variables}
    kept = {name: value for name, value in merged.items() if value is not None}
    preloaded = re.split(r"[:\s]+", kept.get("LD_PRELOAD", ""))
    missing = tuple(path for path in facts.preload_missing if path in preloaded)
    return replace(facts, environment=kept, preload_missing=missing)


def _harmless(command: str) -> bool:
    if "\\n" in command:  # a line break that was quoted: the path is not what it says
        return False
    return bool(_HARMLESS.match(command)) and not re.search(r"[;&|<>`]|\$\(.*\brm\b", command)


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))
