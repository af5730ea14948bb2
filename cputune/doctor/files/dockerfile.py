"""Judging a Dockerfile: the packages that it installs, its variables, the command it starts."""

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
from cputune.stack.tables import DISTRIBUTIONS, load, parse, short_name


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


def looks_like_dockerfile(name: str, text: str) -> bool:
    """By its name, or because it begins with FROM (or ARG)."""
    named = re.search(r"(docker|container)file(?!.*ignore$)", PurePosixPath(name).name.lower())
    begins = re.match(r"([ \t]*(#.*)?\n|ARG .*\n)*FROM\s+\S+", text, re.IGNORECASE)
    return bool(named or begins)


def judge_dockerfile(text: str, context: Context) -> Iterator[Finding]:
    """Every fault of a Dockerfile."""
    there = replace(context, here=False)
    variables: dict[str, str] = {}
    stack: dict[str, str] = {}
    last = None
    for line, word, rest in _instructions(text):
        if word == "ENV":
            name, _, value = rest.partition(" ")
            pairs = re.findall(r'(\w+)=("[^"]*"|\S*)', rest) or [(name, value.strip())]
            variables |= {name: value.strip('"') for name, value in pairs}
        elif word == "RUN":
            for short, version in _installed(rest):
                yield from _package(short, rest, line, there)
                if parse(version):
                    stack[short], last = version, line
        elif word in ("CMD", "ENTRYPOINT"):
            for launch in read_launches(_command(rest), context.name):
                placed = replace(launch, line=line, environment={**variables, **launch.environment})
                yield from judge_launch(placed, there)
    yield from judge_pod_variables(variables, None, there)
    named = ",".join(f"{short}={version}" for short, version in stack.items())
    for finding in judge_stack(named, context.facts) if named else ():
        if finding.severity is not Severity.ADVICE:
            yield replace(finding, evidence=context.at(last, finding.evidence), command=None)


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, word and the rest of each instruction, continued lines joined."""
    bare = re.sub(r"(?m)^[ \t]*#.*$", "\\\\", text)
    for found in re.finditer(r"(?m)^[ \t]*([A-Za-z]+)[ \t]+((?:[^\n\\]|\\[^\n]|\\\n)*)", bare):
        line = bare.count("\n", 0, found.start(1)) + 1
        yield line, found[1].upper(), found[2].replace("\\\n", " ").strip()


def _command(rest: str) -> str:
    """The command of CMD or ENTRYPOINT as a line of shell."""
    try:
        return shell_line([str(word) for word in json.loads(rest)])
    except (ValueError, TypeError):
        return rest


def _installed(command: str) -> Iterator[tuple[str, str]]:
    """Packages of the stack that a RUN line has pip install, with the versions that are named."""
    for words in re.findall(r"\bpip3?\s+install\b([^;&|]*)", command):
        for word in words.split():
            named = re.match(r"([\w.-]+)(?:\[[\w,]*\])?(?:==([\w.+!-]+))?", word.strip("'\""))
            short = short_name(named[1]) if named else None
            if named and short:
                yield short, named[2] or ""


def _package(short: str, command: str, line: int, context: Context) -> Iterator[Finding]:
    if short == "torch" and not re.search(r"/cpu\b|_INDEX", command):
        text = "pip install torch without the index for CPUs brings CUDA"
        index = "--index-url https://download.pytorch.org/whl/cpu"
        yield image_packages.finding(context.at(line, text), remedy=f"Add {index}.")
    torch = context.versions.torch
    if short in ("ipex", "oneccl") and torch is not None:
        row = (load().ipex if short == "ipex" else load().oneccl)[-1]
        if torch.release[:2] > row.version.release[:2]:
            text = f"{DISTRIBUTIONS[short]} has no release for torch {torch}"
            yield image_packages.finding(context.at(line, f"{text} (the last is {row.version})"))


CHECKS = checks_of(__name__)
