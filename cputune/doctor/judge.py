"""Judging a stack that is only named: what fits with it, what it understands, both ways out.

``cputune doctor --stack torch=2.6.0,transformers=4.40`` asks it; ``installed`` stands for
what is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from packaging.version import Version

from cputune.doctor import installed
from cputune.doctor.finding import Check, Finding, Severity, by_severity, check
from cputune.doctor.versions import VERSION_CHECKS
from cputune.errors import UsageError
from cputune.facts import HostFacts, Package
from cputune.stack.fit import DISTRIBUTIONS, Versions, misfits, short_name, versions_of
from cputune.stack.tables import load, parse
from cputune.stack.vocabulary import State, vocabulary
from cputune.stack.ways import way_out

_HINT = "for example --stack torch=2.6.0,transformers=4.40,python=3.11"


def judge_stack(spec: str, facts: HostFacts) -> tuple[Finding, ...]:
    """Findings about a stack that need not be installed, the worst first.

    ``spec`` names packages and versions (``torch=2.6.0,transformers=4.40``, ``==`` too),
    and ``python`` for another interpreter than ours. Raises UsageError where it cannot
    be read.
    """
    if spec.strip() == "installed":
        asked, checks = facts, VERSION_CHECKS
    else:
        asked = stack_facts(spec, facts)
        checks = tuple(check for check in VERSION_CHECKS if check not in installed.CHECKS)
    checks = (*checks, *STACK_CHECKS)
    return by_severity(finding for check in checks for finding in check(asked))


def stack_facts(spec: str, facts: HostFacts) -> HostFacts:
    """The same machine with nothing but this stack on it, and no variables set."""
    python = facts.python
    packages: list[Package] = []
    for part in filter(None, (part.strip() for part in spec.split(","))):
        match = re.fullmatch(r"([\w.\-]+)\s*={1,2}\s*([\w.+!\-]+)", part)
        if match is None:
            raise UsageError(f"cannot read {part!r} as package=version", hint=_HINT)
        name, text = match[1], match[2]
        version = parse(text)
        if version is None:
            raise UsageError(f"{text!r} is not a version", hint=_HINT)
        if name == "python":
            python = text
            continue
        short = {"ipex": "ipex", "oneccl": "oneccl"}.get(name) or short_name(name)
        if short is None:
            known = ", ".join((*DISTRIBUTIONS.values(), "python"))
            raise UsageError(f"no table has {name!r}", hint=f"known are {known}")
        if any(short_name(package.name) == short for package in packages):
            raise UsageError(f"{name} is named twice", hint=_HINT)
        packages.append(Package(name=DISTRIBUTIONS[short], version=text, location=None))
    if not packages:
        raise UsageError("the stack names no package", hint=_HINT)
    return replace(facts, python=python, packages=tuple(packages), environment={}, recorded=True)


@check(
    "stack-fits",
    Severity.ADVICE,
    title="What fits with this stack",
    remedy="Pick versions from these ranges.",
    source="the tables in cputune/doctor/stack.toml, each row with its source",
)
def stack_fits(facts: HostFacts) -> Iterator[Finding]:
    """For each package that was not named: the versions that break no rule with those named."""
    stack, asked = load(), versions_of(facts)
    broken = set(misfits(asked))

    def fits(**more: Version) -> bool:
        return broken.issuperset(misfits(replace(asked, **more)))

    candidates: dict[str, list[Version]] = {
        "torch": [row.last for row in stack.torch],
        "ipex": [row.version for row in stack.ipex],
        "oneccl": [row.version for row in stack.oneccl],
        "transformers": list(stack.transformers.read),
        "accelerate": list(stack.accelerate.read),
    }
    said = [asked.describe()]
    for name, versions in candidates.items():
        if asked.get(name) is None:
            fitting = [fits(**{name: version}) for version in versions]
            said.append(f"{DISTRIBUTIONS[name]}: {_runs(versions, fitting)}")
    if asked.numpy is None:
        said.append("numpy: 1 or 2" if fits(numpy=Version("2.0")) else "numpy: below 2")
    pythons = [f"3.{small}" for small in range(7, 16) if fits(python=Version(f"3.{small}"))]
    said.append(f"Python: {_ends(pythons)}")
    yield stack_fits.finding("; ".join(said))


@check(
    "stack-words",
    Severity.ADVICE,
    title="What this stack accepts, refuses and ignores",
    remedy="Write what is accepted; what is ignored does not happen.",
    source="huggingface/transformers#40784, huggingface/transformers#42852, "
    "huggingface/accelerate#3883, huggingface/peft#3564",
)
def stack_words(facts: HostFacts) -> Iterator[Finding]:
    """Flags of scripts that parse TrainingArguments, keys of accelerate's YAML, variables.

    They came and went: ``use_ipex`` (transformers 4.20 to 4.56), ``no_cuda`` (to 4.57),
    ``use_cpu`` (from 4.32), ``ddp_backend ccl`` (4.29 to 5.0), ``ipex_config`` (accelerate
    0.19 to 1.12).
    """
    words = vocabulary(versions_of(facts))
    for state in State:
        said = [word.describe() for word in words if word.state is state]
        if said:
            yield stack_words.finding(", ".join(said), title=f"What this stack {_VERBS[state]}")


_VERBS = {State.ACCEPTED: "accepts", State.IGNORED: "ignores", State.REFUSED: "refuses"}


@check(
    "stack-ipex-era",
    Severity.ADVICE,
    title="The way to stay in the IPEX era",
    remedy="Install these together.",
    source="https://pypi.org/project/intel-extension-for-pytorch/",
)
def stack_ipex_era(facts: HostFacts) -> Iterator[Finding]:
    """The fewest changes after which IPEX fits, and something calls it."""
    yield from _way(stack_ipex_era, "ipex", versions_of(facts))


@check(
    "stack-today",
    Severity.ADVICE,
    title="The way to today's stack",
    remedy="Install these together; no flag for IPEX or ccl is needed any more.",
    source="https://pypi.org/project/torch/",
)
def stack_today(facts: HostFacts) -> Iterator[Finding]:
    """The fewest changes after which nothing of IPEX and oneCCL is left."""
    yield from _way(stack_today, "today", versions_of(facts))


def _way(asking: Check, era: str, asked: Versions) -> Iterator[Finding]:
    way = way_out(era, asked, complete=True)
    if way is None:
        said = f"no wheels of {load().era(era).says} for Python {asked.python}"
        yield asking.finding(said, remedy="Use Python 3.10 to 3.13.")
    elif not way.changes:
        yield asking.finding(f"{asked.describe()}: nothing has to change", remedy="Keep it.")
    else:
        yield asking.finding(
            f"{asked.describe()} becomes {way.result.describe()}", command=way.command()
        )


def _runs(versions: list[Version], fitting: list[bool]) -> str:
    """The stretches that fit: ``4.10.3 to 4.51.3, 4.53.0 to 5.23.0``."""
    runs: list[list[str]] = []
    open_run = False
    for version, fits in zip(versions, fitting, strict=True):
        if fits and open_run:
            runs[-1].append(str(version))
        elif fits:
            runs.append([str(version)])
        open_run = fits
    return ", ".join(_ends(run) for run in runs) or "none"


def _ends(texts: list[str]) -> str:
    if not texts:
        return "none"
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


STACK_CHECKS: tuple[Check, ...] = (stack_fits, stack_words, stack_ipex_era, stack_today)
"""Run for ``--stack`` only: they answer questions and find no fault."""
