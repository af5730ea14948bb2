"""``cputune doctor --check-file FILE``: judge what people launch with before it runs.

An accelerate configuration (YAML or JSON), a shell script or a line with a training
command (Slurm scripts too), a PyTorchJob or TrainJob, a host file, a Dockerfile. Each is judged by
the installed packages, or by the packages of a stack that is only named: give the facts that
``named_stack.stack_facts`` makes of it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor.files import accelerate, beside, command, kubernetes
from cputune.doctor.files.context import Context
from cputune.doctor.files.shell import TrainingCommand, read_launches
from cputune.doctor.files.yaml_lines import Document, read_documents
from cputune.doctor.finding import Check, Finding, by_severity
from cputune.errors import UsageError
from cputune.facts import HostFacts
from cputune.host import Host

FILE_CHECKS: tuple[Check, ...] = (
    *accelerate.CHECKS,
    *command.CHECKS,
    *kubernetes.CHECKS,
    *beside.CHECKS,
)
"""What can be wrong with a file; they find nothing in the facts of a machine alone."""

LETTERS_AT_MOST = 1 << 20
"""YAML, which takes longer to read, is held to ``yaml_lines``' own number of values."""

_SOURCED = re.compile(r"^[ \t]*(?:source|\.)[ \t]+['\"]?(/[^\s'\"$;&|]+)", re.MULTILINE)

_HINT = (
    "it judges an accelerate configuration, a script with a training command (mpirun, torchrun, "
    "accelerate launch, python), a PyTorchJob, a TrainJob, a host file or a Dockerfile"
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

    The training script, the host file and the libraries that it names are looked up on
    ``host``; without one nothing is known of them. Of a file for another machine (not ``here``)
    only what holds everywhere is judged; ``parser`` is that of ``Context``.
    Raises UsageError where the text is none of the kinds that are understood, or is
    malformed.
    """
    if len(text) > LETTERS_AT_MOST:
        raise UsageError(f"{name} has {len(text)} characters", hint=f"{LETTERS_AT_MOST} are read")
    if "\0" in text:
        raise UsageError(f"{name} is no text file", hint=_HINT)
    context = replace(Context.of(name, facts, host or Host()), here=here, parser=parser)
    if name.lower().endswith((".yaml", ".yml", ".json")):
        return by_severity(_judge_documents(read_documents(text, name), context))
    if _looks_like_yaml(text):
        try:
            documents = read_documents(text, name)
        except UsageError:
            documents = ()
        if any(kind_of(document) for document in documents):
            return by_severity(_judge_documents(documents, context))
    if beside.looks_like_dockerfile(name, text):
        return by_severity(beside.judge_dockerfile(text, context))
    if beside.looks_like_hosts(name, text):
        return by_severity(beside.judge_hosts(text, context))
    return by_severity(_judge_script(text, context))


def configured_findings(facts: HostFacts, host: Host) -> tuple[Finding, ...]:
    """What is wrong with the default configuration of this user; nothing where there is none.

    Its places are those of accelerate/commands/config/config_args.py.
    """
    if facts.package("accelerate") is None:
        return ()
    variables = host.environment()
    cache = variables.get("XDG_CACHE_HOME") or f"{variables.get('HOME', '')}/.cache"
    home = variables.get("HF_HOME") or f"{cache}/huggingface"
    for name in ("default_config.yaml", "default_config.json"):
        path = f"{home}/accelerate/{name}"
        try:
            text = host.read_text(path)
        except (OSError, ValueError):
            continue
        try:
            return check_file(text, path, facts, host)
        except UsageError as error:
            moved = f"mv {shlex.quote(path)} {shlex.quote(path + '.old')}"
            return (accelerate.unreadable.finding(str(error), command=moved),)
    return ()


def _judge_documents(documents: tuple[Document, ...], context: Context) -> Iterator[Finding]:
    kinds = [kind_of(document) for document in documents]
    if not any(kinds):
        raise UsageError(f"{context.name} is YAML of a kind that is not known here", hint=_HINT)
    for document, kind in zip(documents, kinds, strict=True):
        if kind == "accelerate":
            yield from accelerate.judge_accelerate(document, context)
        elif kind is not None:
            yield from kubernetes.judge_kubernetes(document, context)


def _judge_script(text: str, context: Context) -> Iterator[Finding]:
    launches = read_launches(text, context.name)
    for found in _SOURCED.finditer(text) if context.host.live else ():
        if not context.host.exists(found[1]):
            line = text.count("\n", 0, found.start(1)) + 1
            yield command.sourced_missing.finding(
                context.at(line, f"{found[1]} is not there, and is to be sourced")
            )
    if not launches:
        raise UsageError(f"no training command was found in {context.name}", hint=_HINT)
    asked = re.findall(r"^#SBATCH\s+(?:-N\s*|--nodes[=\s]\s*)([0-9]{1,6})\b", text, re.MULTILINE)
    context = replace(context, batch_nodes=int(asked[-1]) if asked else 1)
    for launch in launches:
        yield from command.judge_launch(launch, context)


def judge_lines(
    launches: tuple[TrainingCommand, ...], name: str, facts: HostFacts, host: Host
) -> Iterator[Finding]:
    """The faults of launches that are read already."""
    for launch in launches:
        yield from command.judge_launch(launch, Context.of(name, facts, host))


def kind_of(document: Document) -> str | None:
    """``PyTorchJob``, ``TrainJob`` or ``accelerate``; None for what is not judged."""
    kind = document.get("kind")
    if kind in kubernetes.KINDS:
        return str(kind)
    if kind is None and any(key in document.mapping() for key in accelerate.MARKS):
        return "accelerate"
    return None


def _looks_like_yaml(text: str) -> bool:
    return not text.startswith("#!") and any(
        f"\n{mark}:" in f"\n{text}" for mark in ("kind", *accelerate.MARKS)
    )
