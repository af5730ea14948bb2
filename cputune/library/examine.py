"""``cputune.doctor``: says what is wrong with this machine, and with a launch on it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING

from cputune.doctor import Diagnosis, by_severity, diagnose
from cputune.doctor.configured import configured_findings
from cputune.host import LiveHost, RecordedHost, this_interpreter
from cputune.host.probing import probe

if TYPE_CHECKING:
    from cputune.host import Host
    from cputune.host.facts import HostFacts
    from cputune.launch.launch import Launch


def doctor(
    launch: str | Sequence[str] | None = None,
    *,
    root: str | PathLike[str] | None = None,
    python: str | None = None,
) -> Diagnosis:
    """Say what is wrong with this machine for training, and how to fix it.

    With ``launch`` (``"torchrun --nproc-per-node 2 train.py"``, or a list of words) it also checks
    that launch. ``root`` is the folder of a recorded machine. ``python`` is the Python that
    trains, or its environment; None: the Python that runs this. Nothing is timed::

        report = cputune.doctor()
        report.findings

    Raises UsageError if the launch does not train or ``python`` is not a Python, CannotError if the
    folder is not a recording.
    """
    host: Host = LiveHost(python)
    if root is not None:
        host = RecordedHost(root)
    command = None
    if launch is not None:
        from cputune.doctor import typed_launch

        argv = launch
        if isinstance(launch, str):
            argv = shlex.split(launch)
        command = typed_launch.read_launch(argv, host.interpreter or this_interpreter())
    return look_at(host, probe(host), command)


def look_at(
    host: Host, facts: HostFacts, launch: Launch | None = None, *, deep: bool = False
) -> Diagnosis:
    """Examine a machine and a launch on it. With ``deep``, children import the training
    packages.
    """
    if launch is not None:
        from cputune.doctor import typed_launch
        from cputune.records.history import peak_bytes_before

        if host.live:
            facts = typed_launch.facts_of(launch, facts, host)
            held = peak_bytes_before(launch.argv, launch.ranks or 1)
            around = replace(facts.surroundings, held_bytes=held)
            facts = replace(facts, surroundings=around)
    findings = diagnose(facts).findings + tuple(configured_findings(facts, host))
    if launch is not None:
        findings = typed_launch.of_the_launch(findings, launch, facts, host)
        findings += typed_launch.judge_typed(launch, facts, host)
    if deep:
        from cputune.doctor.deep import deep_findings

        findings += deep_findings(facts, host)
    diagnosis = Diagnosis(facts=facts, findings=by_severity(findings))
    if host.live and host.executable != sys.executable:
        diagnosis = diagnosis.for_python(host.executable)
    if host.live and os.geteuid() == 0:
        diagnosis = diagnosis.for_root()
    return diagnosis
