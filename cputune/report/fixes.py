"""The cures of a diagnosis as one shell script that can be sourced or read.

Only what changes nothing but the shell, or installs a package, stands uncommented;
everything else is a comment to be run by hand.
"""

from __future__ import annotations

import re

from cputune.doctor import Diagnosis, Finding

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
    seen: set[str] = set()
    for finding in diagnosis.findings:
        lines += [*_cure(finding, seen), ""]
    if not diagnosis.findings:
        lines += ["# Nothing to mend.", ""]
    return "\n".join(lines)


def _cure(finding: Finding, seen: set[str]) -> list[str]:
    lines = [f"# {finding.severity.value}: {_one_line(finding.title)} [{finding.code}]"]
    lines += [f"#   {_one_line(finding.evidence)}", f"#   {_one_line(finding.remedy)}"]
    for command in (finding.command or "").splitlines():
        if not command.strip() or command in seen:
            continue
        seen.add(command)
        lines.append(command if _harmless(command) else f"# by hand: {command}")
    return lines


def _harmless(command: str) -> bool:
    return bool(_HARMLESS.match(command)) and not re.search(r"[;&|]|\$\(.*\brm\b", command)


def _one_line(text: str) -> str:
    return " ".join(text.split())
