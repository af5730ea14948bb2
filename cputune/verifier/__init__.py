"""Give launch files to their real consumers, and report the results.

verifications = cputune.verifier.verify(["launch/"], steps=12)

Scripts are run by their launchers, documents go through the SDK models. What no installed consumer
can check is "not checked", with the command that would make it possible.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from cputune.emitters import FORMATS
from cputune.emitters.promise import Promise, plan_file_of, promise_in
from cputune.errors import UsageError
from cputune.host import Host, LiveHost, read_document
from cputune.host.files import entries, exists, is_file, is_folder, real_path
from cputune.host.locks import measuring_lock
from cputune.records.options import keywords
from cputune.records.result import Result
from cputune.verifier.kubernetes import (
    DOCUMENT,
    is_broken,
    is_job,
    judge_documents,
    judge_without_plan,
    with_emitted_threads,
)
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

LARGEST_BYTES = 4 << 20  # of a file that is read
# The consumers, by the names that a ``Format`` uses.
CONSUMERS: Mapping[str, Callable[[Artefact, Expected, Host], Answer]] = {
    # Readers before runners: a script that bash cannot read is not run.
    "bash": read_script,
    "kubernetes": judge_documents,
    "launcher": run_script,
    "sbatch": submit_script,
}


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

    Args:
        paths: files and directories.
        result: its plan is what a launch is compared with; without it the plan that the artefact
            contains.
        steps: optimizer steps of the tuned workload that each launch is run for.
        timeout_seconds: time limit of a launch.
        run: if False nothing is started.
        host: the machine; None: this one.
        on_event: called with each line of progress.
        on_wait: called with the process that measures on this machine; nothing is run meanwhile.
        share_machine: do not wait for it.
        ssh: the command that reaches the hosts of a launch on several nodes.
        submit: hand a batch job to Slurm.

    Raises UsageError for a path that is no artefact, ResultError for a bad result file.
    """
    if host is None:
        host = LiveHost()
    tuned = None
    if result is not None:
        tuned = Result.load(Path(result))
    verifications = []
    launches: list[tuple[Artefact, Expected]] = []
    for artefact in find([Path(path) for path in paths]):
        if artefact.format == DOCUMENT:
            checks = tuple(judge_without_plan(artefact))
            verifications.append(
                Verification(path=str(artefact.path), format=DOCUMENT, checks=checks)
            )
            continue
        expected = expectation(
            artefact,
            tuned,
            steps=steps,
            timeout_seconds=timeout_seconds,
            run=run,
            ssh=tuple(shlex.split(ssh)),
            submit=submit,
            outer=host.environment(),
        )
        launches.append((artefact, expected))
    with measuring_lock(on_wait) if run and not share_machine else nullcontext():
        for artefact, expected in launches:
            if on_event is not None:
                on_event(f"{artefact.path} ({artefact.format})")
            verifications.append(_verification(artefact, expected, host))
    return tuple(verifications)


def _verification(artefact: Artefact, expected: Expected, host: Host) -> Verification:
    checks: list[Outcome] = []
    throughput = None
    for name in FORMATS[artefact.format].consumers:
        if any(check.name == "syntax" and check.state == FAILED for check in checks):
            break
        for answer in CONSUMERS[name](artefact, expected, host):
            if isinstance(answer, Ratio):
                throughput = answer
            else:
                checks.append(answer)
    return Verification(
        path=str(artefact.path),
        format=artefact.format,
        checks=tuple(checks),
        throughput=throughput,
    )


def find(paths: Sequence[Path]) -> tuple[Artefact, ...]:
    """The artefacts among files and directories, sorted inside a directory.

    Other files of a directory (host files, wrappers, a Dockerfile) belong to the artefacts. Raises
    UsageError for a missing path, and for a file or directory without an artefact.
    """
    artefacts: list[Artefact] = []
    for path in paths:
        if not exists(path):
            raise UsageError(f"{path} does not exist", hint="`cputune emit` writes launch files")
        if is_folder(path):
            files = entries(path)
        else:
            files = [path]
        inside = []
        for file in files:
            artefact = read(file) if is_file(file) else None
            if artefact is not None:
                inside.append(artefact)
        if not inside and is_file(path):
            document = read_job(path)
            if document is not None:
                inside.append(document)
        if not inside and is_folder(path):
            raise UsageError(
                f"{path} contains no launch file", hint="cputune emit --format all -o DIR"
            )
        if not inside:
            raise UsageError(
                f"{path} was not written by `cputune emit`",
                hint=f"`cputune doctor --check-file {path}` reads other launches",
            )
        artefacts += inside
    return tuple({real_path(artefact.path): artefact for artefact in artefacts}.values())


def read(path: Path) -> Artefact | None:
    """The artefact in a file with a format and a plan, or None. Raises UsageError."""
    try:
        text = read_document(path, most_bytes=LARGEST_BYTES)
    except OSError as error:
        if error.errno in (errno.EFBIG, errno.EILSEQ):
            return None
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    promise = promised_of(path, text)
    named = plan_file_of(text)
    if named is not None and promise.plan is None:
        raise UsageError(
            f"{path} needs {named} next to it, which holds its plan",
            hint="keep the files that were emitted together in one directory",
        )
    if promise.format is None or promise.format not in FORMATS or promise.plan is None:
        if is_broken(text):
            return Artefact(path=path, format=DOCUMENT, text=text)
        return None
    return Artefact(path=path, format=promise.format, text=text)


def read_job(path: Path) -> Artefact | None:
    """A job of Kubernetes that names no plan, yours for example, or None."""
    try:
        text = read_document(path, most_bytes=LARGEST_BYTES)
    except OSError:
        return None
    if not is_job(text):
        return None
    return Artefact(path=path, format=DOCUMENT, text=text)


def promised_of(path: Path, text: str) -> Promise:
    """What a launch promises, by the file next to it that holds its plan."""

    def beside(name: str) -> str | None:
        try:
            return read_document(Path(real_path(path)).parent / name, most_bytes=LARGEST_BYTES)
        except OSError:
            return None

    return promise_in(text, beside)


def expectation(artefact: Artefact, result: Result | None, **options: Any) -> Expected:
    """What an artefact is compared with: the given result, else the plan that it contains.

    ``options``: how it is tried, as fields of ``Expected``.
    """
    promise = promised_of(artefact.path, artefact.text)
    if result is not None and promise.plan is not None:
        best, workload, nodes = result.best, result.workload, promise.plan.nodes
        plan = replace(best.plan, nodes=nodes, as_found=False)
        if promise.document is not None:
            plan = with_emitted_threads(plan, promise.plan)
        environment = plan.environment()
        if promise.document is not None and promise.environment is not None:
            # A file of yours may have a flag in place of a variable.
            kept = promise.environment.keys() & environment.keys()
            environment = {name: environment[name] for name in kept}
        fixed = None
        if workload.batch_per_rank is None:
            fixed = workload.global_batch_size
        recipe = workload.recipe
        promise = replace(
            promise,
            plan=plan,
            samples_per_second=best.samples_per_second if nodes == best.plan.nodes else None,
            environment=environment,
            sequence_length=promise.sequence_length if recipe is None else recipe.every_length,
            global_batch_size=promise.global_batch_size or fixed,
        )
    return Expected(**keywords(promise), **options)
