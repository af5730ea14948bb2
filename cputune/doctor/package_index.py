"""Asks pip's index whether it has versions that fit together: ``doctor --stack``.

``pip install --dry-run`` reads the metadata of wheels. It installs nothing, and builds nothing: of
a package without a wheel the setup.py would run. uv is asked if this Python has no pip.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from cputune.doctor.finding import Finding, Severity, by_severity, checks_of, fault
from cputune.host.base import Command, Host

SECONDS = 30.0  # a resolver that goes back through releases takes minutes

_DRY = ("--dry-run", "--only-binary", ":all:")
_QUIET = (
    "--quiet",
    "--ignore-installed",
    "--no-input",
    "--disable-pip-version-check",
    "--retries",
    "1",
    "--timeout",
    "5",
)
_HAS_ALL = "The package index has these versions, and they can be installed together."
_HAS_ALL_THAT_FAIL = (
    "The package index has these versions, and pip would install them: their metadata does not say "
    "what is wrong with them."
)
_UNREACHED = re.compile(
    r"connection broken|NewConnectionError|Could not fetch URL|ProxyError|SSLError"
    r"|error sending request|Failed to fetch",
    re.IGNORECASE,
)


@fault("stack-index", Severity.ERROR)
def stack_index() -> None:
    """The package index cannot install this stack

    Symptom: pip ends with "No matching distribution found" or "ResolutionImpossible".

    Cause: the index lacks a version or its wheels for this Python and machine, or packages of the
    stack require versions of another one that exclude each other.

    Remedy: Change what pip names. A private index may lack releases that PyPI has.

    Source: https://pip.pypa.io/en/stable/topics/dependency-resolution/
    """


def with_index(
    findings: Sequence[Finding], pins: Sequence[str], python: str | None, host: Host
) -> tuple[Finding, ...]:
    """The findings about a stack with what the index says of its ``pins``; worst first.

    ``python``: the version that installs them; None for that of the host.
    """
    refusal, said = _asked(pins, python, host)
    if said == _HAS_ALL and any(finding.severity is Severity.ERROR for finding in findings):
        said = _HAS_ALL_THAT_FAIL
    judged = []
    for finding in findings:
        if finding.code == "stack-fits":
            judged.append(replace(finding, remedy=f"Pick versions from these ranges. {said}"))
        else:
            judged.append(finding)
    if refusal:
        judged.append(stack_index.finding(refusal))
    return by_severity(judged)


def _asked(pins: Sequence[str], python: str | None, host: Host) -> tuple[str, str]:
    """Why the index refuses the pins (empty: it does not), and a sentence on what was asked."""
    typed = f"pip install --dry-run --ignore-installed {' '.join(pins)}"
    if host.environment().get("PIP_NO_INDEX"):
        return "", f"No index was asked, because PIP_NO_INDEX is set; this asks one: {typed}"
    argv: tuple[str, ...] = (host.executable, "-m", "pip", "install") + _DRY + _QUIET
    if python is not None:
        argv += ("--python-version", python, "--target", "/nonexistent")
    argv += tuple(pins)
    done = host.run(Command(argv=argv, timeout_seconds=SECONDS))
    if done.returncode != 0 and "No module named pip" in done.stderr:
        argv = ("uv", "pip", "install") + _DRY
        argv += ("--python", host.executable) if python is None else ("--python-version", python)
        argv += tuple(pins)
        if host.which("uv") is None:
            return "", f"No index was asked, because this Python has no pip: {typed}"
        done = host.run(Command(argv=argv, timeout_seconds=SECONDS))
    if done.returncode == 0:
        return "", _HAS_ALL
    if done.returncode is None:
        return "", f"The package index gave no answer within {SECONDS:.0f} s: {typed}"
    if _UNREACHED.search(done.stderr):
        return "", f"No package index could be reached; this asks yours: {typed}"
    return _reason(done.stderr), f"The package index refuses it: {typed}"


def _reason(text: str) -> str:
    """What pip or uv says, without its advice and without the list of all other versions."""
    said = []
    for line in text.splitlines():
        error = re.match(r"(?:ERROR:|\s*[×╰─▶]+)\s*(.+)", line)
        if error is not None and not error[1].startswith("ResolutionImpossible"):
            said.append(re.sub(r" \(from versions: .*", "", error[1]).rstrip("."))
    return "; ".join(said) or "pip refused it without a reason"


CHECKS = checks_of(__name__)
