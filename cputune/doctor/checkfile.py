"""``cputune doctor --check-file FILE``: judge what people launch with before it runs.

An accelerate configuration (YAML or JSON), a shell script or a line with a training
command (Slurm scripts too), a PyTorchJob or TrainJob. Each is judged by the installed
packages, or by the packages of a stack that is only named: give the facts that
``named_stack.stack_facts`` makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor.edit import apply
from cputune.doctor.files import dockerfile, documents, ended, judge, needs
from cputune.doctor.files.context import Context
from cputune.doctor.files.places import Places
from cputune.doctor.files.shell import read_launches
from cputune.doctor.finding import Check, Finding, by_severity
from cputune.errors import UsageError
from cputune.host import Host
from cputune.host.facts import HostFacts
from cputune.plans.training_command import TrainingCommand

FILE_CHECKS: tuple[Check, ...] = (
    *judge.CHECKS,
    *needs.CHECKS,
    *ended.CHECKS,
    *documents.CHECKS,
    *dockerfile.CHECKS,
)
"""What can be wrong with a file; they find nothing in the facts of a machine alone."""

LETTERS_AT_MOST = 1 << 20
"""YAML, which takes longer to read, is held to ``documents``' own number of values."""

_HINT = (
    "it judges an accelerate configuration, a script with a training command (mpirun, torchrun, "
    "accelerate launch, python), a PyTorchJob or TrainJob, a Dockerfile"
)


def check_file(
    text: str,
    name: str,
    facts: HostFacts,
    host: Host | None = None,
    *,
    here: bool = True,
    parser: str | None = None,
) -> tuple[Finding, ...]:
    """The faults of one file, the worst first; the evidence names file and line.

    The training script and the libraries that it names are looked up on
    ``host``; without one nothing is known of them. Of a file for another machine (not ``here``)
    only what holds everywhere is judged; ``parser`` is that of ``Context``.
    Raises UsageError where the text is none of the kinds that are understood, or is
    malformed.
    """
    if len(text) > LETTERS_AT_MOST:
        raise UsageError(f"{name} has {len(text)} characters", hint=f"{LETTERS_AT_MOST} are read")
    if "\0" in text:
        raise UsageError(f"{name} is no text file", hint=_HINT)
    context = Context(
        name=name,
        facts=facts,
        host=host or Host(),
        here=here,
        parser=parser,
    )
    if _is_dockerfile(text, name):
        places = Places(text, sets="ENV")
        return by_severity(dockerfile.judge_dockerfile(replace(context, places=places)))
    places = Places(text, yaml=is_yaml(text, name))
    return by_severity(_judge(text, replace(context, places=places)))


def _is_dockerfile(text: str, name: str) -> bool:
    """Whether a file describes an image, by its name or by its first instruction."""
    named = re.search(r"(docker|container)file(\.[\w.-]+)?$", name.rpartition("/")[2].lower())
    return (
        named is not None or re.match(r"(#[^\n]*\n|\s)*(ARG [^\n]*\n\s*)*FROM ", text) is not None
    )


ROUNDS = 8
"""A cure may bring up the next fault (a launcher is replaced, and now its flags are read)."""


def mended(
    text: str, name: str, facts: HostFacts, host: Host | None = None
) -> tuple[str, tuple[Finding, ...]]:
    """The file as its findings mend it, and what is left. Raises UsageError as ``check_file``."""
    found = check_file(text, name, facts, host)
    for _ in range(ROUNDS):
        after = apply(text, [edit for finding in found for edit in finding.edits])
        if after == text:
            break
        text, found = after, check_file(after, name, facts, host)
    return text, found


def is_yaml(text: str, name: str) -> bool:
    """Whether a file is YAML (or JSON), by its name or by its first key."""
    lines = (line for line in text.splitlines() if line.strip() and line[:1] not in ("#", "-"))
    suffix = name.lower().endswith((".yaml", ".yml", ".json"))
    return suffix or re.match(r"\w+:(\s|$)", next(lines, "")) is not None


def _judge(text: str, context: Context) -> Iterator[Finding]:
    if not is_yaml(text, context.name):
        launches = read_launches(text, context.name)
        if not launches:
            raise UsageError(f"no training command was found in {context.name}", hint=_HINT)
        yield from ended.judge_sourced(context)
        yield from judge.judge_launches((_in_batch(launch, text) for launch in launches), context)
        return
    judged = [
        documents.judge_document(document, context)
        for document in documents.read_documents(text, context.name)
    ]
    if not any(judged):
        raise UsageError(f"{context.name} is YAML of a kind that is not known here", hint=_HINT)
    for findings in filter(None, judged):
        yield from findings


def _in_batch(launch: TrainingCommand, text: str) -> TrainingCommand:
    """The launch on as many machines as the ``#SBATCH`` lines of its script ask for."""
    asked = re.findall(r"(?m)^#SBATCH\b.*?\s(?:-N\s*|--nodes[=\s]\s*)([0-9]{1,6})\b", text)
    if not asked or not (launch.part or launch.launcher == "mpirun"):
        return launch
    return replace(launch, environment={"SLURM_NNODES": asked[-1], **launch.environment})
