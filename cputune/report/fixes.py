"""The remedies of a diagnosis as one shell script that can be sourced or read.

Only commands that change nothing but the shell, or install a package, are active; all others are
comments, to be run by hand.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from cputune.doctor import Diagnosis, Finding
from cputune.text import visible

_HARMLESS = re.compile(
    r"(export [A-Za-z_]\w*=|unset [A-Za-z_]\w*( [A-Za-z_]\w*)*$|ulimit -S?n |source |\. "
    r"|('[^']+' -m |\S+ -m )?pip install )"
)
_HEAD = """#!/usr/bin/env bash
# What cputune doctor advises for this machine. Read it, then source it in the
# shell that trains:  . ./fix.sh
# Lines that would change the system, or remove anything, are comments.
# shellcheck disable=SC1090,SC1091
"""
_END = "# Then run cputune doctor again, in the same shell: it sees what is set now.\n"


def fix_script(diagnosis: Diagnosis) -> str:
    """A bash script of every remedy, the most severe first; it passes ``bash -n``."""
    cures = _Cures()
    sections = [_section(finding, cures) for finding in diagnosis.findings]
    end = _END if sections else "# Nothing to mend.\n"
    return "\n\n".join((_HEAD, *sections, end)).replace("\n\n\n", "\n\n")


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


def _variables(command: str) -> dict[str, str | None]:
    """What ``export A=1 B=2`` and ``unset A B`` do to variables; empty for other commands.

    Also empty for what only a shell can expand, such as PATH=…:"$PATH".
    """
    words = shlex.split(command)
    if words[0] == "unset":
        return dict.fromkeys(words[1:])
    pairs = (word.partition("=") for word in words[1:]) if words[0] == "export" else ()
    return {name: value for name, _, value in pairs if "$" not in value}


def _harmless(command: str) -> bool:
    if "\\n" in command:  # a line break that was quoted: the path is not what it says
        return False
    return bool(_HARMLESS.match(command)) and not re.search(r"[;&|<>`]|\$\(.*\brm\b", command)


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))
