"""Judging what lies beside a launch: the host file of an mpirun, and the Dockerfile of an image."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from cputune.doctor.files.command import judge_launch, judge_pod_variables
from cputune.doctor.files.context import Context
from cputune.doctor.files.shell import read_launches, shell_line
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.doctor.named_stack import judge_stack
from cputune.errors import UsageError
from cputune.remote.named import parse_hostfile
from cputune.stack.tables import DISTRIBUTIONS, load, parse, short_name


@fault("file-hosts", Severity.ERROR)
def hosts_wrong() -> None:
    """An mpirun reads this host file otherwise than it is meant, or not at all

    Symptom: "unable to parse hostfile", ranks on one host alone, or more ranks than cores.

    Cause: Intel MPI and MPICH read host:N, Open MPI reads host slots=N; each takes the words of the
    other for something else. localhost is each host itself.

    Remedy: Write one form, and the names by which the hosts reach each other; `cputune emit
    --format mpirun --hostfile FILE` writes both.

    Source: https://www.mpich.org/static/docs/latest/www1/mpiexec.html,
    https://docs.open-mpi.org/en/main/launching-apps/scheduling.html
    """


@fault("file-image", Severity.WARNING)
def image_packages() -> None:
    """The image installs what its training cannot use

    Symptom: pip finds no version, takes an old torch, or brings gigabytes of CUDA.

    Cause: torch of PyPI is built for CUDA; the one for CPUs lies on an index of its own. IPEX and
    the oneCCL bindings have a release for some versions of torch, the last for 2.8, and nothing
    calls them since accelerate 1.13 and transformers 4.57.

    Remedy: Name the index for torch, and leave out what the evidence says.

    Source: https://pytorch.org/get-started/locally/, huggingface/accelerate#3883
    """


def looks_like_hosts(name: str, text: str) -> bool:
    """Whether this is a host file: by its name, or because each line names a host and its slots."""
    if re.search(r"(^|[._-])(hosts?|hostfile|machine(s|file)?)\b", PurePosixPath(name).name, re.I):
        return not re.search(r"\bpython|torchrun|accelerate\b", text)
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    form = re.compile(r"[A-Za-z0-9_][\w.-]*(:[0-9]{1,5}|\s+(max[_-])?slots=[0-9]{1,5}.*)")
    return any(lines) and all(form.fullmatch(line) for line in lines if line)


def judge_hosts(text: str, context: Context) -> Iterator[Finding]:
    """Every fault of a host file."""
    try:
        nodes = parse_hostfile(text, where=context.name)
    except UsageError as error:
        yield hosts_wrong.finding(str(error), remedy=error.hint)
        return
    code = [line.partition("#")[0] for line in text.splitlines()]
    by_colon = next(
        (n for n, line in enumerate(code, 1) if re.search(r"\w:[0-9]+\s*$", line)), None
    )
    by_slots = next((n for n, line in enumerate(code, 1) if "slots=" in line), None)
    if by_colon and by_slots:
        said = f"host:N, and line {by_slots} has slots=N: no mpirun reads both"
        yield hosts_wrong.finding(context.at(by_colon, said))
    here = next((n.name for n in nodes if n.name == "localhost" or n.name.startswith("127.")), None)
    if here and len(nodes) > 1:
        said = f"{here} among {len(nodes)} hosts is each of them itself"
        yield hosts_wrong.finding(context.at(None, said))


def looks_like_dockerfile(name: str, text: str) -> bool:
    """By its name, or because it begins with FROM (or ARG)."""
    base = PurePosixPath(name).name.lower()
    named = "dockerfile" in base or "containerfile" in base
    named &= not base.endswith("ignore")
    return named or re.match(r"(\s*(#.*)?\n|ARG .*\n)*FROM\s+\S+", text, re.IGNORECASE) is not None


def judge_dockerfile(text: str, context: Context) -> Iterator[Finding]:
    """Every fault of a Dockerfile: its packages, its variables, and the command it starts."""
    there = replace(context, here=False)
    variables: dict[str, str] = {}
    stack: dict[str, tuple[str, int]] = {}
    for line, word, rest in instructions(text):
        if word == "ENV":
            name, _, value = rest.partition(" ")
            pairs = re.findall(r'(\w+)=("[^"]*"|\S*)', rest) or [(name, value.strip())]
            variables |= {name: value.strip('"') for name, value in pairs}
        elif word == "RUN":
            for name, version in _installed(rest):
                yield from _package(name, rest, line, there)
                if version and parse(version):
                    stack[short_name(name) or name] = (version, line)
        elif word in ("CMD", "ENTRYPOINT"):
            for launch in read_launches(words_of(rest), context.name):
                placed = replace(launch, line=line, environment={**variables, **launch.environment})
                yield from judge_launch(placed, there)
    yield from judge_pod_variables(variables, None, there)
    if stack:
        spec = ",".join(f"{name}={version}" for name, (version, _) in stack.items())
        last = max(line for _, line in stack.values())
        for finding in judge_stack(spec, context.facts):
            if finding.severity is not Severity.ADVICE:
                yield replace(finding, evidence=context.at(last, finding.evidence), command=None)


def instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, word and the rest of each instruction of a Dockerfile, continued lines joined."""
    start, held = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        start = start or number
        held += " " + line.rstrip().removesuffix("\\")
        if line.rstrip().endswith("\\"):
            continue
        word, _, rest = held.strip().partition(" ")
        if word:
            yield start, word.upper(), rest.strip()
        start, held = 0, ""


def words_of(rest: str) -> str:
    """The command of CMD or ENTRYPOINT as a line of shell."""
    if not rest.startswith("["):
        return rest
    try:
        return shell_line([str(word) for word in json.loads(rest)])
    except ValueError:
        return ""


def _installed(command: str) -> Iterator[tuple[str, str]]:
    """Packages of the stack that a RUN line has pip install, with their versions."""
    for part in re.split(r"&&|;|\|\|", command):
        match = re.search(r"\bpip3?\s+install\b(.*)", part)
        for word in match[1].split() if match else ():
            named = re.fullmatch(r"([\w.-]+)(?:\[[\w,]*\])?(?:==([\w.+!-]+))?.*", word.strip("'\""))
            if named and short_name(named[1]):
                yield named[1], named[2] or ""


def _package(name: str, command: str, line: int, context: Context) -> Iterator[Finding]:
    short = short_name(name)
    if short == "torch" and not re.search(r"/cpu\b|_INDEX", command):
        text = f"pip install {name} without the index for CPUs brings CUDA"
        index = "--index-url https://download.pytorch.org/whl/cpu"
        yield image_packages.finding(context.at(line, text), remedy=f"Add {index}.")
    if short in ("ipex", "oneccl") and context.versions.torch is not None:
        row = (load().ipex if short == "ipex" else load().oneccl)[-1]
        if context.versions.torch.release[:2] > row.version.release[:2]:
            text = f"{DISTRIBUTIONS[short]} has no release for torch {context.versions.torch}"
            yield image_packages.finding(context.at(line, f"{text} (the last is {row.version})"))


CHECKS = checks_of(__name__)
