"""What an artefact promises, in a line for programs: written by ``emit``, read by ``verify``.

# cputune-plan: {"format": "mpirun", "plan": {...}, ...}

A document of Kubernetes has it in an annotation: kustomize drops comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

from cputune.emitters.manifest import PLAN
from cputune.plans.equivalence import Training
from cputune.plans.plan import Plan
from cputune.records.result import Throughput
from cputune.text.documents import at, parse, plain, record_of

_LINE = re.compile(r"^#[ \t]*cputune-plan:[ \t]*(\{.*\})[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromisedTraining:
    """What is trained.

    Attributes:
        words: the training command, as ``python`` takes it; ``${NAME}`` ends one with a secret.
        files: digests of the files that it names, by path.
        model: what the optimizer trains (``RankState.model``); None if that was not seen.
        data: samples of the data set; None if that was not seen.
    """

    words: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict, hash=False)
    model: str | None = None
    data: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a launch is compared with. None and empty: nothing is promised.

    Attributes:
        plan: what the ranks must show.
        environment: the variables of every rank.
        hosts: of a launch on several nodes, in order.
        samples_per_second: the tuned figure, if it was measured on as many nodes.
        global_batch_size: samples per optimizer step over all ranks, if that is fixed.
        sequence_length: tokens of a sample.
        training: what the current launch trains.
        trained: the command, its files, and the reports of its ranks.
        document: what decides in a job's document (``manifest.decided``).
        folder: marks of the lines of the other files in its folder (``folder.kept_lines``).
    """

    format: str | None = None
    plan: Plan | None = None
    environment: Mapping[str, str] | None = None
    hosts: tuple[str, ...] = ()
    samples_per_second: Throughput | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    training: Training | None = None
    trained: PromisedTraining | None = None
    document: Mapping[str, str] | None = None
    folder: Mapping[str, str] | None = None

    def text(self) -> str:
        promised = {name: value for name, value in plain(self).items() if value not in (None, [])}
        return json.dumps(promised, separators=(",", ":"))

    def line(self) -> str:
        """The comment that says it."""
        return f"# {PLAN}: {self.text()}\n"


_NAMES_FILE = re.compile(r"^#[ \t]*cputune-plan:[ \t]*(\w+), ([\w.-]+)(?: \(.*)?$", re.MULTILINE)


def plan_file_of(text: str) -> str | None:
    """The name of the file with the plan next to a launch, or None."""
    match = _NAMES_FILE.search(text)
    return None if match is None else match[2]


def promise_in(text: str, beside: Callable[[str], str | None] = lambda name: None) -> Promise:
    """What an artefact promises; nothing if it has no readable promise.

    ``beside`` reads a file by its name from the folder of the artefact, or returns None. Launches
    of earlier releases have the plan in a line.
    """
    named = _NAMES_FILE.search(text)
    if named is not None:
        return replace(promise_of(beside(named[2]) or ""), format=named[1])
    match = _LINE.search(text)
    if match is not None:
        return promise_of(match[1])
    if PLAN not in text:
        return Promise()
    import yaml  # not for scripts

    try:
        jobs = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return Promise()
    for job in jobs:
        annotation = at(job, "metadata", "annotations", PLAN)
        if annotation is not None:
            return promise_of(annotation)
    return Promise()


def promise_of(text: object) -> Promise:
    """What a line, or an annotation, promises."""
    names = {field.name for field in fields(Promise)}
    try:
        values = parse(str(text)) if text else {}
        return record_of(Promise, {name: values[name] for name in values if name in names})
    except ValueError:
        return Promise()
