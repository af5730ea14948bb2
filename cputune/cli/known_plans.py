"""The newest result of a command on this machine, from a file or from the history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cputune.emitters.imported import digest, text_of
from cputune.errors import CputuneError
from cputune.host import LiveHost, read_document
from cputune.host.facts import HostFacts
from cputune.host.files import exists
from cputune.host.process import folder
from cputune.plans.workload import Workload
from cputune.records.history import kept_ids, result_path
from cputune.records.result import Result
from cputune.records.shared_texts import machine_difference, missing_cpus


def newest_of(workload: Workload, facts: HostFacts, *, first: Sequence[Path] = ()) -> str | None:
    """The newest result of this command on this machine: of the files ``first``, or an id.

    One of the history is of this folder, or of a script with the same text.
    """
    given = [str(path) for path in first if exists(path)]
    for word in given + list(kept_ids()):
        path = result_path(word)
        try:
            if (workload.program or (workload.name,))[-1] not in read_document(path):
                continue
            result = Result.load(path)
            if _is_of(result, workload, facts) and (word in given or _is_of_here(result)):
                return word
        except (CputuneError, OSError, ValueError):
            continue
    return None


def _is_of(result: Result, workload: Workload, facts: HostFacts) -> bool:
    job = result.workload
    if job.program != workload.program or result.disturbed:
        return False
    if workload.recipe is not None and job.name != workload.name:
        return False
    there = machine_difference(result.host, facts) or missing_cpus(result.best.plan, facts)
    return there is None


def _is_of_here(result: Result) -> bool:
    """Whether a result is of this folder, or of the same script: many are called train.py."""
    if result.workload.recipe is not None or result.folder == digest(folder()):
        return True
    scripts = list(result.files.items())[:1]
    host = LiveHost()
    return any(digest(text_of(path, host) or "") == before for path, before in scripts)
