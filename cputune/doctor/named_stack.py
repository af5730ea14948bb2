"""Judging a stack that is only named.

``cputune doctor --stack torch=2.6.0,transformers=4.40`` asks it; ``installed`` stands for
what is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from packaging.version import Version

from cputune.doctor.checks import versions
from cputune.doctor.finding import Check, Finding, Severity, by_severity, check, checks_of
from cputune.errors import UsageError
from cputune.facts import HostFacts, Package
from cputune.stack.fit import PYTHONS, misfits, tried, was_seen_training
from cputune.stack.tables import DISTRIBUTIONS, Versions, load, parse, short_name, versions_of
from cputune.stack.uses import Fate, vocabulary
from cputune.stack.ways import way_out

_HINT = "for example --stack torch=2.6.0,transformers=4.40,python=3.11"


def judge_stack(spec: str, facts: HostFacts) -> tuple[Finding, ...]:
    """Findings about a stack that need not be installed, the worst first.

    ``spec`` names packages and versions (``torch=2.6.0,transformers=4.40``, ``==`` too),
    and ``python`` for another interpreter than ours. Raises UsageError where it cannot
    be read.
    """
    if spec.strip() == "installed":
        asked, checks = facts, versions.CHECKS
    else:
        asked = stack_facts(spec, facts)
        checks = tuple(check for check in versions.CHECKS if check not in versions.INSTALLED)
    checks = (*checks, *CHECKS)
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


@check("stack-fits", Severity.ADVICE)
def stack_fits(facts: HostFacts) -> Iterator[Finding]:
    """What fits with this stack

    For each package that was not named: the versions that break no rule with those named. Of
    transformers beside accelerate what was seen training, and what nobody has tried.

    Remedy: Pick versions from these ranges.

    Source: the tables in cputune/stack/stack.toml, each row with its source
    """
    asked = versions_of(facts)
    broken = set(misfits(asked))

    def fits(**more: Version) -> bool:
        return broken.issuperset(misfits(asked.changed(**more)))

    said = [asked.describe() + _seen(asked)]
    for name, releases in load().releases().items():
        if asked.get(name) is None:
            fitting = [fits(**{name: version}) for version in releases]
            numpy = "1 or 2" if fitting[-1] else "below 2"
            known = numpy if name == "numpy" else _runs(releases, fitting)
            if name in _PAIRED and asked.get(_PAIRED[name]) is not None:
                seen = [was_seen_training(asked.changed(**{name: one})) for one in releases]
                ran = [fit and trained for fit, trained in zip(fitting, seen, strict=True)]
                rest = [fit and not trained for fit, trained in zip(fitting, seen, strict=True)]
                known = f"seen training {_runs(releases, ran)}, not tried {_runs(releases, rest)}"
            said.append(f"{DISTRIBUTIONS[name]}: {known}")
    pythons = [fits(python=Version(text)) for text in PYTHONS]
    said.append(f"Python: {_runs(PYTHONS, pythons)}")
    yield stack_fits.finding("; ".join(said))


_PAIRED = {"transformers": "accelerate", "accelerate": "transformers"}


def _seen(asked: Versions) -> str:
    """What is known of this transformers beside this accelerate; nothing where one is not named."""
    if asked.transformers is None or asked.accelerate is None:
        return ""
    if was_seen_training(asked):
        return " (seen training)"
    return " (does not train)" if tried(asked) else " (this pair was not tried)"


@check("stack-words", Severity.ADVICE)
def stack_words(facts: HostFacts) -> Iterator[Finding]:
    """What this stack accepts, refuses and ignores

    Flags of scripts that parse TrainingArguments, keys of accelerate's YAML, variables.

    They came and went: ``use_ipex`` (transformers 4.20 to 4.56), ``no_cuda`` (to 4.57),
    ``use_cpu`` (from 4.32), ``ddp_backend ccl`` (4.29 to 5.0), ``ipex_config`` (accelerate
    0.19 to 1.12).

    Remedy: Write only what is accepted: what is ignored has no effect.

    Source: huggingface/transformers#40784, huggingface/transformers#42852,
    huggingface/accelerate#3883, huggingface/peft#3564
    """
    words = vocabulary(versions_of(facts))
    for state in Fate:
        said = [word.describe() for word in words if word.state is state]
        if said:
            yield stack_words.finding(", ".join(said), title=f"What this stack {_VERBS[state]}")


_VERBS = {Fate.ACCEPTED: "accepts", Fate.IGNORED: "ignores", Fate.REFUSED: "refuses"}


@check("stack-ipex-era", Severity.ADVICE)
def stack_ipex_era(facts: HostFacts) -> Iterator[Finding]:
    """The way to stay in the IPEX era

    The fewest changes after which IPEX fits, and something calls it.

    Remedy: Install these together.

    Source: https://pypi.org/project/intel-extension-for-pytorch/
    """
    yield from _way(stack_ipex_era, "ipex", versions_of(facts))


@check("stack-today", Severity.ADVICE)
def stack_today(facts: HostFacts) -> Iterator[Finding]:
    """The way to today's stack

    The fewest changes after which nothing of IPEX and oneCCL is left.

    Remedy: Install these together; no flag for IPEX or ccl is needed any more.

    Source: https://pypi.org/project/torch/
    """
    yield from _way(stack_today, "today", versions_of(facts))


def _way(asking: Check, era: str, asked: Versions) -> Iterator[Finding]:
    way = way_out(era, asked, complete=True)
    if way is None:
        said = f"no wheels of {load().era(era).says} for Python {asked.python}"
        yield asking.finding(said, remedy="Use Python 3.10 to 3.14.")
    elif not way.changes:
        yield asking.finding(f"{asked.describe()}: nothing has to change", remedy="Keep it.")
    else:
        yield asking.finding(
            f"{asked.describe()} becomes {way.result.describe()}", command=way.command()
        )


def _runs(versions: Sequence[Version | str], fitting: list[bool]) -> str:
    """The stretches that fit: ``4.10.3 to 4.51.3, 4.53.0 to 5.23.0``."""
    told = groupby(zip(versions, fitting, strict=True), key=itemgetter(1))
    runs = [[str(version) for version, _ in run] for fits, run in told if fits]
    ends = (run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    return ", ".join(ends) or "none"


CHECKS = checks_of(__name__)
