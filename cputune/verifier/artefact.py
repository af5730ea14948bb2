"""Which files are artefacts, of which format, and what they promise."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cputune.documents import parse, record_of
from cputune.emitters import FORMATS
from cputune.emitters.job import placed_on
from cputune.equivalence import Training
from cputune.errors import ResultError, UsageError
from cputune.host import read_document
from cputune.plan import Plan
from cputune.remote.named import Node
from cputune.result import Result, Throughput
from cputune.verifier.records import Artefact, Expected

PROMISE = re.compile(r"^#[ \t]*cputune-plan:[ \t]*(\{.*\})[ \t]*$", re.MULTILINE)
"""The comment by which an artefact says what it was written from; see ``docs/verify.md``."""

RESULT_NAME = "cputune.json"
LARGEST_BYTES = 4 << 20

NOT_EMITTED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    # what else is read: a pattern of its text, and its consumers
    "pvc": (r"^kind:\s*[\"']?PersistentVolumeClaim\b", ("kubernetes",)),
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
    said = promise(text).get("format")
    if isinstance(said, str):
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


def promise(text: str) -> Mapping[str, object]:
    """What the header comment says for machines; empty where it says nothing."""
    match = PROMISE.search(text)
    if match is None:
        return {}
    try:
        said = parse(match[1])
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def expectation(artefact: Artefact, result_path: Path | None, base: Expected) -> Expected:
    """What an artefact is held against: a result file that is given, else its own header,
    else a ``cputune.json`` beside it, above it or here.

    Raises ResultError where the result file that was given cannot be read, UsageError where
    its plan has no CPUs for the hosts of the launch.
    """
    said = promise(artefact.text)
    result = _result(artefact.path, result_path)
    try:
        plan = Plan.from_json(_mapping(said["plan"])) if "plan" in said else None
        promised = _throughput(said.get("samples_per_second"))
    except (ResultError, KeyError, TypeError, ValueError):
        plan = promised = None
    batch, length = said.get("global_batch_size"), said.get("sequence_length")
    words, environment = _words(said.get("words")), _variables(said.get("environment"))
    if result is not None and result.workload.batch_per_rank is None:
        batch = batch or result.workload.global_batch_size
    hosts = _names(said.get("hosts"))
    if result is not None and (plan is None or result_path is not None):
        measured = result.best
        nodes = 1 if plan is None else plan.nodes
        named = tuple(Node(name=name) for name in hosts)
        plan = replace(placed_on(measured.plan, nodes, named, result.hosts), as_found=False)
        promised = measured.samples_per_second if nodes == measured.plan.nodes else None
        environment = {**result.workload.variables, **plan.environment()}
        if result.workload.recipe is not None:
            length = result.workload.recipe.every_length
    training = None
    if "training" in said:
        with contextlib.suppress(ValueError):
            training = record_of(Training, said["training"])
    return replace(
        base,
        training=training,
        plan=plan,
        samples_per_second=promised,
        global_batch_size=batch if isinstance(batch, int) else None,
        sequence_length=length if isinstance(length, int) else None,
        words=words,
        environment=environment,
        hosts=hosts,
    )


def _names(value: object) -> tuple[str, ...]:
    """The hosts of a launch; none where the text says nothing that can be read."""
    named = value if isinstance(value, list) else []
    return tuple(name for name in named if isinstance(name, str))


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError("not a mapping")
    return value


def _words(value: object) -> tuple[str | None, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(word if isinstance(word, str) else None for word in value)


def _variables(value: object) -> dict[str, str] | None:
    if not isinstance(value, Mapping):
        return None
    return {str(name): str(text) for name, text in value.items()}


def _throughput(value: object) -> Throughput | None:
    if value is None:
        return None
    numbers = {key: float(str(number)) for key, number in _mapping(value).items()}
    return Throughput(median=numbers["median"], low=numbers["low"], high=numbers["high"])


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
