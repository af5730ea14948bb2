"""Judging a stack that is only named.

``cputune doctor --stack torch=2.6.0,transformers=4.40`` asks it; ``installed`` stands for
what is installed.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cputune.doctor.checks import installed, stack_answers, versions
from cputune.doctor.finding import Finding, by_severity
from cputune.errors import UsageError
from cputune.facts import HostFacts, Package
from cputune.stack.tables import parse
from cputune.stack.versions import DISTRIBUTIONS, short_name

_HINT = "for example --stack torch=2.6.0,transformers=4.40,python=3.11"


def judge_stack(spec: str, facts: HostFacts) -> tuple[Finding, ...]:
    """Findings about a stack that need not be installed, the worst first.

    ``spec`` names packages and versions (``torch=2.6.0,transformers=4.40``, ``==`` too),
    and ``python`` for another interpreter than ours. Raises UsageError where it cannot
    be read.
    """
    if spec.strip() == "installed":
        asked, checks = facts, versions.CHECKS
    else:
        asked = stack_facts(spec, facts)
        checks = tuple(check for check in versions.CHECKS if check not in installed.CHECKS)
    checks = (*checks, *stack_answers.CHECKS)
    return by_severity(finding for check in checks for finding in check(asked))


def stack_facts(spec: str, facts: HostFacts) -> HostFacts:
    """The same machine with nothing but this stack on it, and no variables set."""
    python = facts.python
    packages: list[Package] = []
    for part in filter(None, (part.strip() for part in spec.split(","))):
        match = re.fullmatch(r"([\w.\-]+)\s*={1,2}\s*([\w.+!\-]+)", part)
        if match is None:
            raise UsageError(f"cannot read {part!r} as package=version", hint=_HINT)
        name, text = match[1], match[2]
        version = parse(text)
        if version is None:
            raise UsageError(f"{text!r} is not a version", hint=_HINT)
        if name == "python":
            python = text
            continue
        short = {"ipex": "ipex", "oneccl": "oneccl"}.get(name) or short_name(name)
        if short is None:
            known = ", ".join((*DISTRIBUTIONS.values(), "python"))
            raise UsageError(f"no table has {name!r}", hint=f"known are {known}")
        if any(short_name(package.name) == short for package in packages):
            raise UsageError(f"{name} is named twice", hint=_HINT)
        packages.append(Package(name=DISTRIBUTIONS[short], version=text, location=None))
    if not packages:
        raise UsageError("the stack names no package", hint=_HINT)
    return replace(facts, python=python, packages=tuple(packages), environment={}, recorded=True)
