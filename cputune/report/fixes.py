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
    written: list[str] = []
    for finding in diagnosis.findings:
        lines += [*_cure(finding, written), ""]
    if not diagnosis.findings:
        lines += ["# Nothing to mend.", ""]
    return "\n".join(lines)


def _cure(finding: Finding, written: list[str]) -> list[str]:
    """The finding as comments and its command; ``written`` collects the commands so far."""
    lines = [f"# {finding.severity.value}: {_one_line(finding.title)} [{finding.code}]"]
    lines += [f"#   {_one_line(finding.evidence)}", f"#   {_one_line(finding.remedy)}"]
    for line in (finding.command or "").splitlines():
        command = visible(line).strip()
        if not command or command in written:
            continue
        if not _harmless(command):
            lines.append(f"# by hand: {command}")
        elif "pip install" in command and any("pip install" in other for other in written):
            lines.append(f"# or, in place of the one above: {command}")
        else:
            lines.append(command)
        written.append(command)
    return lines


def _harmless(command: str) -> bool:
    return bool(_HARMLESS.match(command)) and not re.search(r"[;&|<>`]|\$\(.*\brm\b", command)


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))
