"""The cures of a diagnosis as one shell script that can be sourced or read.

Only what changes nothing but the shell, or installs a package, stands uncommented;
everything else is a comment to be run by hand.
"""

from __future__ import annotations

import re

from cputune.doctor import Diagnosis, Finding
from cputune.report.machine import visible

_HARMLESS = re.compile(
    r"(export [A-Za-z_]\w*=|unset [A-Za-z_]\w*( [A-Za-z_]\w*)*$|ulimit -S?n |source |\. "
    r"|(python3? -m )?pip install )"
)


def fix_script(diagnosis: Diagnosis) -> str:
    """A bash script of every remedy, the most severe first; it passes ``bash -n``."""
    lines = [
        "#!/usr/bin/env bash",
        "# What cputune doctor advises for this machine. Read it, then source it in the",
        "# shell that trains:  . ./fix.sh",
        "# Lines that would change the system, or remove anything, are comments.",
        "# shellcheck disable=SC1090,SC1091",
        "",
    ]
    touched: set[str] = set()
    for finding in diagnosis.findings:
        lines += [*_cure(finding, touched), ""]
    if not diagnosis.findings:
        lines += ["# Nothing to mend.", ""]
    return "\n".join(lines)


def _cure(finding: Finding, touched: set[str]) -> list[str]:
    """The finding as comments and its command.

    ``touched`` collects what earlier commands set: of two cures for one variable, or two
    sets of versions, the one of the worse finding is live.
    """
    lines = [f"# {finding.severity.value}: {_one_line(finding.title)} [{finding.code}]"]
    lines += [f"#   {_one_line(finding.evidence)}", f"#   {_one_line(finding.remedy)}"]
    for line in (finding.command or "").splitlines():
        command = visible(line).strip()
        if not command:
            continue
        what = _touches(command)
        if not _harmless(command):
            lines.append(f"# by hand: {command}")
        elif touched & what:
            lines.append(f"# in place of what stands above: {command}")
        else:
            lines.append(command)
            touched |= what
    return lines


def _touches(command: str) -> set[str]:
    """The variables that a command sets or removes, or the installed packages as a whole."""
    if "pip install" in command:
        return {"pip install"}
    words = command.split()
    if words[0] in ("export", "unset"):
        return {word.partition("=")[0] for word in words[1:]}
    return {command}


def _harmless(command: str) -> bool:
    return bool(_HARMLESS.match(command)) and not re.search(r"[;&|<>`]|\$\(.*\brm\b", command)


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))
