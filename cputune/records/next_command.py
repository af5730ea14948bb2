"""What to do after a study, as a command that can be typed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from cputune.plans.workload import DEFAULT_RECIPE, Workload, recipe_names
from cputune.records.options import DEFAULT_BUDGET, TuneOptions, options_in
from cputune.text.documents import Amount

if TYPE_CHECKING:
    from cputune.records.result import Result

Kind = Literal["resume", "tune", "keep", "check"]
"""``resume`` goes on with the study, ``tune`` starts a new one, ``keep`` changes nothing, and
``check`` looks at the launch that does not run."""

QUIET = "when the machine is quiet"
KEEP_THE_LAUNCH = "nothing: keep the launch that you have"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """What would bring an answer that a study does not have.

    Attributes:
        kind: which command that is.
        when: a condition that has to be true first; None if there is none.
        seconds: the time limit to give; None for the same one again.
        budget: the number of trials to give; None for the same one again.
    """

    kind: Kind = "resume"
    when: Annotated[str, Meta(max_length=256)] | None = None
    seconds: Amount | None = None
    budget: Annotated[int, Meta(ge=1)] | None = None


def command_of(step: NextStep, result: Result) -> str:
    """The command of a step, as it is typed in a shell."""
    if step.kind == "keep":
        return KEEP_THE_LAUNCH
    if step.kind == "check":
        return _joined(["cputune", "doctor", *_trained(result.workload, recipe=False)], result)
    resume = step.kind == "resume" and result.resumable
    words = list(result.command or _composed(result))
    replaced: dict[str, str] = {}
    if step.seconds is not None:
        replaced["--max-time"] = time_limit(step.seconds)
    if step.budget is not None:
        replaced["--budget"] = str(step.budget)
    at = words.index("--") if "--" in words else len(words)
    own = list(_without(words[2:at], {*replaced, "--resume", "--force"}))
    # A new study replaces the files of the one before.
    own.append("--resume" if resume else "--force")
    for option, value in replaced.items():
        own += [option, value]
    return _joined([*words[:2], *own, *words[at:]], result)


def _joined(words: Iterable[str], result: Result) -> str:
    """The words for a shell, which fills the variables of secrets."""
    secret_of = result.workload.secret_of
    return " ".join(shlex.quote(word) if secret_of(word) is None else f'"{word}"' for word in words)


def time_limit(seconds: float) -> str:
    """A time limit of whole minutes, as ``--max-time`` takes it: ``12m``."""
    return f"{max(1, ceil(seconds / 60))}m"


def _without(words: list[str], options: set[str]) -> Iterator[str]:
    """The words without these options and their values."""
    flags = {"--resume", "--force"}
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif name in options:
            skip = not equals and name not in flags
        else:
            yield word


def _composed(result: Result) -> Iterator[str]:
    """The command of a study that was not started by one, from what its result says."""
    yield from ("cputune", "tune")
    yield from _options(result.asked)
    if result.budget is not None and result.budget != DEFAULT_BUDGET:
        yield from ("--budget", str(result.budget))
    yield from _trained(result.workload)


def _options(asked: Mapping[str, Any]) -> Iterator[str]:
    for name, _, _, text in options_in(TuneOptions):
        value = asked.get(name)
        if value is None or value is False or text.flag is None:
            continue
        if value is True:
            yield text.flag
        elif isinstance(value, Mapping):
            for knob, held in value.items():
                yield from (text.flag, f"{knob}={held}")
        elif isinstance(value, (list, tuple)):
            yield from (text.flag, ",".join(map(str, value)))
        else:
            yield from (text.flag, str(value))


def _trained(workload: Workload, *, recipe: bool = True) -> Iterator[str]:
    """How a workload is named in a command."""
    if workload.batch_per_rank is not None and recipe:
        yield from ("--batch-per-rank", str(workload.batch_per_rank))
    if workload.recipe is None:
        yield "--"
        yield from (workload.launch or ("python", *workload.argv))
    elif recipe and workload.name != DEFAULT_RECIPE and workload.name in recipe_names():
        yield from ("--recipe", workload.name)
