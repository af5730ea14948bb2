"""The doctor: from the facts of a machine to what is wrong with it, and how to fix it.

``diagnose(facts)`` only reads the facts. Checks that start a child are in ``deep`` and run on
request.
"""

from __future__ import annotations

import sys

import cputune
from cputune.doctor.finding import Check, Diagnosis, Finding, Severity, by_severity, findings_of
from cputune.host.facts import HostFacts

__all__ = ["Check", "Diagnosis", "Finding", "Severity", "by_severity", "diagnose"]


def diagnose(facts: HostFacts) -> Diagnosis:
    """Run every check of the registry over these facts."""
    from cputune.doctor.checks import CHECKS
    from cputune.doctor.checks.surroundings import pythonpath_first

    findings = [pythonpath_first(finding, facts) for finding in findings_of(CHECKS, facts)]
    return Diagnosis(facts=facts, findings=by_severity(findings))


# `cputune.doctor` is this package and `cputune.doctor()` a function: Python has one name for both.
sys.modules[__name__].__class__ = cputune.DoctorModule
