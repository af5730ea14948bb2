"""``cputune doctor --stack torch=2.6.0,…``: judge versions that need not be installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from packaging.version import Version

from cputune.doctor.checks import packages, versions
from cputune.doctor.finding import (
    Check,
    Finding,
    Severity,
    by_severity,
    check,
    checks_of,
    findings_of,
)
from cputune.errors import UsageError
from cputune.host.facts import HostFacts, Package
from cputune.stack.fit import declared_by, misfits, python_wheel, pythons, pythons_for
from cputune.stack.tables import DISTRIBUTIONS, Versions, load, parse, short_name, versions_of
from cputune.stack.uses import Fate, vocabulary
from cputune.stack.version_changes import smallest_change, version_change

_HINT = "for example --stack torch=2.6.0,transformers=4.40,python=3.11"


def judge_stack(spec: str, facts: HostFacts) -> tuple[Finding, ...]:
    """The findings, the worst first. Raises UsageError if the stack cannot be read.

    ``spec`` names packages and versions (``torch=2.6.0,transformers=4.40``, ``==`` too), and
    ``python``; ``installed`` means the installed versions.
    """
    installed = spec.strip() == "installed"
    if installed:
        judged = facts
    else:
        judged = stack_facts(spec, facts)
    candidates = versions.CHECKS + packages.CHECKS + CHECKS
    checks = [check for check in candidates if installed or check not in versions.INSTALLED]
    return by_severity(findings_of(checks, judged))


def stack_facts(spec: str, facts: HostFacts) -> HostFacts:
    """The same machine with only this stack installed, and no variables set."""
    python = facts.python
    named: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in spec.split(","))):
        name, _, text = (word.strip() for word in part.partition("="))
        text = text.removeprefix("=")
        short = name if name in ("python", *DISTRIBUTIONS) else short_name(name)
        if short is None:
            accepted = ", ".join((*DISTRIBUTIONS.values(), "python"))
            raise UsageError(
                f"{name!r} is not a package of the tables", hint=f"known are {accepted}"
            )
        if parse(text) is None or short in named:
            raise UsageError(f"cannot read {part!r} as one package=version", hint=_HINT)
        if short == "python":
            python = text
        else:
            named[short] = text
    if not named:
        raise UsageError("the stack names no package", hint=_HINT)
    named_packages = tuple(_package(name, text, named) for name, text in named.items())
    return replace(facts, python=python, packages=named_packages, environment={}, recorded=True)


def pins_of(stack: Versions) -> list[str]:
    """The stack as pip takes it."""
    named = filter(stack.get, DISTRIBUTIONS)
    return [f"{DISTRIBUTIONS[name]}=={stack.get(name)}" for name in named]


def _package(name: str, version: str, named: Mapping[str, str]) -> Package:
    """A package as if it were installed, with the requirements that the tables have."""
    required = tuple(
        f"{DISTRIBUTIONS[other]}{specifier}"
        for other, specifier in declared_by(name, parse(version))
        if other in named
    )
    return Package(name=DISTRIBUTIONS[name], version=version, location=None, requires=required)


@check("stack-python", Severity.ERROR)
def stack_python(facts: HostFacts) -> Iterator[Finding]:
    """This Python cannot install a package of the stack

    Symptom: "No matching distribution found", "Requires-Python", or pip builds from source.

    Cause: torch, IPEX and the oneCCL bindings have wheels for some Pythons; pure Python libraries
    declare the oldest one.

    Remedy: Use another Python, or other versions.

    Source: https://packaging.python.org/en/latest/specifications/core-metadata/#requires-python
    """
    stack = versions_of(facts)
    reasons = [reason for name in DISTRIBUTIONS if (reason := python_wheel(stack, name))]
    if not reasons:
        return
    fitting = pythons_for(stack)
    change = smallest_change(stack)
    remedy = ""
    if fitting:
        remedy = f"Use Python {_runs(pythons(), fitting)}"
    if change is not None:
        stay = f"with Python {stack.python} these fit: {change.command()}"
        if remedy:
            remedy = f"{remedy}; or {stay}"
        else:
            remedy = stay.capitalize()
    yield stack_python.finding("; ".join(reasons), remedy=f"{remedy}." if remedy else None)


@check("stack-impossible", Severity.ERROR, under=("stack-python",))
def stack_impossible(facts: HostFacts) -> Iterator[Finding]:
    """No release of a package that this stack needs fits it

    Symptom: pip finds "conflicting dependencies", or an import fails after an installation with
    --no-deps.

    Cause: two packages of the stack need different releases of a third one.

    Remedy: Change one of them.

    Source: the tables in cputune/stack/stack.toml, each row with its source
    """
    stack = versions_of(facts)
    if misfits(stack):
        return
    releases = load().releases()
    for name, by in _needed(stack).items():
        if any(not misfits(stack.changed(**{name: version})) for version in releases[name]):
            continue
        change = smallest_change(stack.changed(**{name: releases[name][-1]}))
        yield stack_impossible.finding(
            f"{DISTRIBUTIONS[name]}, which {' and '.join(by)} need",
            command=change.command() if change is not None else None,
        )


def _needed(stack: Versions) -> dict[str, list[str]]:
    """The packages that are not named, and those that need them."""
    needed = dict[str, list[str]]()
    for name in DISTRIBUTIONS:
        for other, _ in declared_by(name, stack.get(name)):
            if stack.get(other) is None and other in load().releases():
                needed.setdefault(other, []).append(f"{name} {stack.get(name)}")
    return needed


@check("stack-fits", Severity.ADVICE)
def stack_fits(facts: HostFacts) -> Iterator[Finding]:
    """What fits with this stack

    For each package that was not named: the versions that fit all named ones.

    Cause: the tables decide, which are of the day of this release. The command also asks the
    package index whether it has the named versions.

    Remedy: Pick versions from these ranges.

    Source: the tables in cputune/stack/stack.toml, each row with its source
    """
    stack = versions_of(facts)
    broken = set(misfits(stack))

    def fits(**more: Version) -> bool:
        return broken.issuperset(misfits(stack.changed(**more)))

    parts = [stack.describe()]
    for name, releases in load().releases().items():
        if stack.get(name) is not None:
            continue
        fitting = []
        for version in releases:
            if fits(**{name: version}):
                fitting.append(version)
        releases_text = _runs(releases, fitting)
        if name == "numpy":
            releases_text = "below 2"
            if releases[-1] in fitting:
                releases_text = "1 or 2"
        parts.append(f"{DISTRIBUTIONS[name]}: {releases_text}")
    # A Python that has no wheel of what was named is not among those that fit.
    broken = set(misfits(stack.changed(python=None)))
    built = []
    for text in pythons():
        if fits(python=Version(text)):
            built.append(text)
    parts.append(f"Python: {_runs(pythons(), built)}")
    asking = f"pip install --dry-run --ignore-installed {' '.join(pins_of(stack))}"
    remedy = f"Pick versions from these ranges. No index was asked; this asks yours: {asking}"
    yield stack_fits.finding("; ".join(parts), remedy=remedy)


@check("stack-words", Severity.ADVICE)
def stack_words(facts: HostFacts) -> Iterator[Finding]:
    """What this stack accepts, refuses and ignores

    Flags of scripts that parse TrainingArguments, keys of accelerate's YAML, variables:
    ``use_ipex`` (transformers 4.20 to 4.56), ``no_cuda`` (to 4.57), ``use_cpu`` (from 4.32),
    ``ddp_backend ccl`` (4.29 to 5.0), ``ipex_config`` (accelerate 0.19 to 1.12).

    Remedy: Write only what is accepted: what is ignored has no effect.

    Source: huggingface/transformers#40784, huggingface/transformers#42852,
    huggingface/accelerate#3883, huggingface/peft#3564
    """
    named_words = vocabulary(versions_of(facts))
    for state in Fate:
        described = []
        for word in named_words:
            if word.state is state:
                described.append(word.describe())
        if described:
            yield stack_words.finding(
                ", ".join(described), title=f"What this stack {_VERBS[state]}"
            )


_VERBS = {Fate.ACCEPTED: "accepts", Fate.IGNORED: "ignores", Fate.REFUSED: "refuses"}


@check("stack-ipex-era", Severity.ADVICE)
def stack_ipex_era(facts: HostFacts) -> Iterator[Finding]:
    """The way to stay in the IPEX era

    The fewest changes after which IPEX fits and is called.

    Remedy: Install these together.

    Source: https://pypi.org/project/intel-extension-for-pytorch/
    """
    yield from _change_to(stack_ipex_era, "ipex", versions_of(facts))


@check("stack-today", Severity.ADVICE)
def stack_today(facts: HostFacts) -> Iterator[Finding]:
    """The way to the current stack

    The fewest changes that remove IPEX and oneCCL.

    Remedy: Install these together; no flag for IPEX or ccl is needed then.

    Source: https://pypi.org/project/torch/
    """
    yield from _change_to(stack_today, "today", versions_of(facts))


def _change_to(check: Check, era: str, stack: Versions) -> Iterator[Finding]:
    change = version_change(era, stack, complete=True)
    if change is None and version_change(era, Versions(python=stack.python), complete=True) is None:
        problem = f"no wheels of {load().era(era).says} for Python {stack.python}"
        yield check.finding(problem, remedy="Use Python 3.10 to 3.14.")
    elif change is None:
        problem = f"no releases of {load().era(era).says} fit all of {stack.describe()}"
        yield check.finding(problem, remedy="Name fewer packages.")
    else:
        becomes = "stays as it is"
        if change.changes:
            becomes = f"becomes {change.result.describe()}"
        yield check.finding(f"{stack.describe()} {becomes}", command=change.command())


def _runs(all_of_them: Sequence[Version | str], fitting: Sequence[Version | str]) -> str:
    """``4.10.3 to 4.51.3, 4.53.0 to 5.23.0``: the ranges that fit."""
    ranges = []
    for fits, versions_of_run in groupby(all_of_them, key=lambda version: version in fitting):
        run = list(map(str, versions_of_run))
        if fits and len(run) == 1:
            ranges.append(run[0])
        elif fits:
            ranges.append(f"{run[0]} to {run[-1]}")
    return ", ".join(ranges) or "none"


CHECKS = checks_of(__name__)
