"""Answers about a stack: what fits with it, what it understands, both ways out.

They find no fault, and are given for ``--stack`` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.version import Version

from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.facts import HostFacts
from cputune.stack.fit import PYTHONS, misfits
from cputune.stack.tables import load
from cputune.stack.versions import DISTRIBUTIONS, Versions, versions_of
from cputune.stack.vocabulary import State, vocabulary
from cputune.stack.ways import way_out


@check(
    "stack-fits",
    Severity.ADVICE,
    title="What fits with this stack",
    remedy="Pick versions from these ranges.",
    source="the tables in cputune/stack/stack.toml, each row with its source",
)
def stack_fits(facts: HostFacts) -> Iterator[Finding]:
    """For each package that was not named: the versions that break no rule with those named."""
    asked = versions_of(facts)
    broken = set(misfits(asked))

    def fits(**more: Version) -> bool:
        return broken.issuperset(misfits(asked.changed(**more)))

    said = [asked.describe()]
    for name, versions in load().releases().items():
        if asked.get(name) is None:
            fitting = [fits(**{name: version}) for version in versions]
            numpy = "1 or 2" if fitting[-1] else "below 2"
            known = numpy if name == "numpy" else _runs(versions, fitting)
            said.append(f"{DISTRIBUTIONS[name]}: {known}")
    pythons = [text for text in PYTHONS if fits(python=Version(text))]
    said.append(f"Python: {_ends(pythons)}")
    yield stack_fits.finding("; ".join(said))


@check(
    "stack-words",
    Severity.ADVICE,
    title="What this stack accepts, refuses and ignores",
    remedy="Write only what is accepted: what is ignored has no effect.",
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


def _runs(versions: Sequence[Version], fitting: list[bool]) -> str:
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


CHECKS: tuple[Check, ...] = (stack_fits, stack_words, stack_ipex_era, stack_today)
