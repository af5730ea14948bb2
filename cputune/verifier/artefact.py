"""Which files are artefacts, of which format, and what they promise."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cputune.emitters import FORMATS
from cputune.emitters.job import placed_on
from cputune.emitters.promise import promise_in
from cputune.errors import ResultError, UsageError
from cputune.host import read_document
from cputune.options import keywords
from cputune.remote.named import Node
from cputune.result import Result
from cputune.verifier.records import Artefact, Expected

RESULT_NAME = "cputune.json"
LARGEST_BYTES = 4 << 20

NOT_EMITTED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    # what else is read: a pattern of its text, and its consumers
    "kubernetes": (r"^apiVersion:.*\n(.*\n)*?kind:", ("kubernetes",)),
    "shell": (r"\A#!.*\b(ba)?sh\b", ("bash",)),
}


def consumers_of(format: str) -> tuple[str, ...]:
    """Who takes a format, by name; nobody takes one that is not known."""
    if format in NOT_EMITTED:
        return NOT_EMITTED[format][1]
    return FORMATS[format].consumers if format in FORMATS else ()


def find(paths: Sequence[Path]) -> tuple[Artefact, ...]:
    """The artefacts among files and directories, sorted inside a directory.

    What else lies in a directory (host files, wrappers, a Dockerfile) belongs to the
    artefacts and is passed over. Raises UsageError for a path that is not there, and
    for a file or a directory that holds no artefact.
    """
    found: list[Artefact] = []
    for path in paths:
        if path.is_dir():
            inside = [read(child) for child in sorted(path.iterdir()) if child.is_file()]
            artefacts = [artefact for artefact in inside if artefact is not None]
            if not artefacts:
                raise UsageError(
                    f"{path} holds no launch file", hint="cputune emit --format all -o DIR"
                )
            found += artefacts
            continue
        if not path.exists():
            raise UsageError(f"{path} does not exist", hint="`cputune emit` writes launch files")
        artefact = read(path) if path.is_file() else None
        if artefact is None:
            raise UsageError(
                f"{path} is no launch file that cputune knows",
                hint="give a script that begins with #!, or a Kubernetes document; "
                f"`cputune doctor --check-file {path}` reads other launches",
            )
        found.append(artefact)
    return tuple({artefact.path.resolve(): artefact for artefact in found}.values())


def read(path: Path) -> Artefact | None:
    """The artefact in a file; None where it is something else. Raises UsageError."""
    try:
        text = read_document(path, most_bytes=LARGEST_BYTES)
    except OSError as error:
        if error.errno in (errno.EFBIG, errno.EILSEQ):
            return None
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    kind = format_of(text)
    return None if kind is None else Artefact(path=path, format=kind, text=text)


def format_of(text: str) -> str | None:
    """The format of a text: what it says of itself, else what it looks like."""
    if said := promise_in(text).format:
        return said
    shell, _ = NOT_EMITTED["shell"]
    is_script = re.search(shell, text) is not None
    code = "\n".join(
        line
        for line in text.splitlines()
        if not line.lstrip().startswith("#") or line.startswith("#SBATCH")
    )
    # A batch script names a launcher too, and accelerate's may speak of mpirun, the first format.
    for one in reversed(tuple(FORMATS.values())):
        if one.script <= is_script and one.known_by and re.search(one.known_by, code, re.MULTILINE):
            return one.name
    return next(
        (name for name, (known, _) in NOT_EMITTED.items() if re.search(known, text, re.M)), None
    )


def expectation(artefact: Artefact, result_path: Path | None, base: Expected) -> Expected:
    """What an artefact is held against: a result file that is given, else its own header,
    else a ``cputune.json`` beside it, above it or here.

    Raises ResultError where the result file that was given cannot be read, UsageError where
    its plan has no CPUs for the hosts of the launch.
    """
    said = promise_in(artefact.text)
    result = _result(artefact.path, result_path)
    if result is not None and (said.plan is None or result_path is not None):
        best, workload = result.best, result.workload
        nodes = 1 if said.plan is None else said.plan.nodes
        named = tuple(Node(name=name) for name in said.hosts)
        plan = replace(placed_on(best.plan, nodes, named, result.hosts), as_found=False)
        length = said.sequence_length if workload.recipe is None else workload.recipe.every_length
        said = replace(
            said,
            plan=plan,
            samples_per_second=best.samples_per_second if nodes == best.plan.nodes else None,
            environment={**workload.variables, **plan.environment()},
            sequence_length=length,
        )
    if result is not None and result.workload.batch_per_rank is None:
        batch = said.global_batch_size or result.workload.global_batch_size
        said = replace(said, global_batch_size=batch)
    return replace(base, **keywords(said))


def _result(path: Path, given: Path | None) -> Result | None:
    if given is not None:
        return Result.load(given)
    for directory in (path.parent, path.resolve().parent.parent, Path()):
        candidate = directory / RESULT_NAME
        if candidate.is_file():
            try:
                return Result.load(candidate)
            except ResultError:
                continue
    return None
