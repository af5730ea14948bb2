"""Hand launch files to their real consumers, and say what those saw.

    verifications = cputune.verifier.verify(["launch/"], steps=12)

Nothing is judged by reading alone where somebody can be asked: scripts are run by their
launchers, documents go through the SDK models. What cannot be asked is "not checked",
with the command that would make it possible; it is never passed in silence.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from cputune.host import Host, LiveHost
from cputune.host.locks import measuring_lock
from cputune.verifier.artefact import consumers_of, expectation, find
from cputune.verifier.kubernetes import judge_documents
from cputune.verifier.records import (
    FAILED,
    NOT_CHECKED,
    PASSED,
    Answer,
    Artefact,
    Evidence,
    Expected,
    Outcome,
    Ratio,
    Verification,
    not_checked,
)
from cputune.verifier.scripts import read_script, run_script, submit_script

__all__ = [
    "FAILED",
    "NOT_CHECKED",
    "PASSED",
    "Evidence",
    "Outcome",
    "Ratio",
    "Verification",
    "verify",
]

CONSUMERS: Mapping[str, Callable[[Artefact, Expected, Host], Answer]] = {
    # Readers before runners: a script that bash cannot read is not run.
    "bash": read_script,
    "kubernetes": judge_documents,
    "launcher": run_script,
    "sbatch": submit_script,
}
"""By the names that a ``Format`` calls them."""


def verify(
    paths: Sequence[str | os.PathLike[str]],
    *,
    result: str | os.PathLike[str] | None = None,
    steps: int = 12,
    timeout_seconds: float = 300.0,
    run: bool = True,
    host: Host | None = None,
    on_event: Callable[[str], None] | None = None,
    share_machine: bool = False,
    on_wait: Callable[[str], None] | None = None,
    ssh: str = "ssh",
    submit: bool = False,
) -> tuple[Verification, ...]:
    """Verify every artefact among files and directories, one after the other.

    ``steps`` optimizer steps of the tuned workload are run for each launch, which may take
    ``timeout_seconds``; with ``run=False`` nothing is started. The plan that a launch is
    held against is that of ``result``, else what the artefact says of itself, else a
    ``cputune.json`` beside it. ``on_event`` is told what is being done, a line at a time.
    While another process measures on this machine nothing is run, and ``on_wait`` is told
    which one it is; with ``share_machine`` it is run at once. A launch on several nodes is
    run on its hosts, reached by the command ``ssh``; a batch job is handed to a cluster that
    has other machines than this only with ``submit``.

    Raises UsageError for a path that is no artefact, ResultError for a bad result file.
    """
    host = LiveHost() if host is None else host
    base = Expected(
        steps=steps,
        timeout_seconds=timeout_seconds,
        run=run,
        ssh=tuple(shlex.split(ssh)),
        submit=submit,
    )
    given = None if result is None else Path(result)
    found = find([Path(path) for path in paths])
    expectations = [expectation(artefact, given, base) for artefact in found]
    verifications = []
    with measuring_lock(on_wait) if run and not share_machine else nullcontext():
        for artefact, expected in zip(found, expectations, strict=True):
            if on_event is not None:
                on_event(f"{artefact.path} ({artefact.format})")
            verifications.append(_verification(artefact, expected, host))
    return tuple(verifications)


def _verification(artefact: Artefact, expected: Expected, host: Host) -> Verification:
    checks: list[Outcome] = []
    throughput = None
    for name in consumers_of(artefact.format):
        if any(check.name == "syntax" and check.state == FAILED for check in checks):
            break
        for said in CONSUMERS[name](artefact, expected, host):
            if isinstance(said, Ratio):
                throughput = said
            else:
                checks.append(said)
    if not checks:
        checks = [not_checked("consumer", f"nobody here takes the format {artefact.format!r}")]
    return Verification(
        path=str(artefact.path),
        format=artefact.format,
        checks=tuple(checks),
        throughput=throughput,
    )
