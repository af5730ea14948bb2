"""The next step after a study, as a command to type."""

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

# ``resume`` continues the study, ``tune`` starts a new one, ``keep`` needs no command, and
# ``check`` examines a launch that does not run.
Kind = Literal["resume", "tune", "keep", "check"]

QUIET = "when the machine is quiet"
KEEP_THE_LAUNCH = "nothing: keep the launch that you have"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """What would give the answer that a study could not give.

    Attributes:
        when: a condition that has to be true before.
        seconds: the time limit to pass; None keeps the present one.
        budget: the number of trials to pass; None keeps the present one.
    """

    kind: Kind = "resume"
    when: Annotated[str, Meta(max_length=256)] | None = None
    seconds: Amount | None = None
    budget: Annotated[int, Meta(ge=1)] | None = None


def command_of(step: NextStep, result: Result) -> str:
    if step.kind == "keep":
        return KEEP_THE_LAUNCH
    if step.kind == "check":
        return _joined(["cputune", "doctor", *_trained(result.workload, recipe=False)], result)
    resume = step.kind == "resume" and result.resumable
    argv = list(result.command or _composed(result))
    replaced: dict[str, str] = {}
    if step.seconds is not None:
        replaced["--max-time"] = time_limit(step.seconds)
    if step.budget is not None:
        replaced["--budget"] = str(step.budget)
    if "--" in argv:
        at = argv.index("--")
    else:
        at = len(argv)
    without = {"--resume", "--force"} | replaced.keys()
    if step.when == QUIET:
        without |= {"--share-machine"}
    options = list(_without(argv[2:at], without))
    if resume:
        options.append("--resume")
    for option, value in replaced.items():
        options += [option, value]
    return _joined(argv[:2] + options + argv[at:], result)


def _joined(argv: Iterable[str], result: Result) -> str:
    """Quote a command for a shell, so that it expands the variables of secrets."""
    quoted = []
    for word in argv:
        if result.workload.secret_of(word) is None:
            quoted.append(shlex.quote(word))
        else:
            quoted.append(f'"{word}"')
    return " ".join(quoted)


def time_limit(seconds: float) -> str:
    """Write a time limit in whole minutes for ``--max-time``: ``12m``."""
    return f"{max(1, ceil(seconds / 60))}m"


def _without(arguments: list[str], options: set[str]) -> Iterator[str]:
    flags = {"--resume", "--force", "--share-machine"}
    skip = False
    for word in arguments:
        name, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif name in options:
            skip = not equals and name not in flags
        else:
            yield word


def _composed(result: Result) -> Iterator[str]:
    """Compose the command of a study that was started from Python."""
    yield from ("cputune", "tune")
    yield from _options(result.asked)
    if result.budget is not None and result.budget != DEFAULT_BUDGET:
        yield from ("--budget", str(result.budget))
    yield from _trained(result.workload)


def _options(options: Mapping[str, Any]) -> Iterator[str]:
    for name, _, _, text in options_in(TuneOptions):
        value = options.get(name)
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
    if workload.batch_per_rank is not None and recipe:
        yield from ("--batch-per-rank", str(workload.batch_per_rank))
    if workload.recipe is None:
        yield "--"
        yield from (workload.launch or ("python", *workload.argv))
    elif recipe and workload.name != DEFAULT_RECIPE and workload.name in recipe_names():
        yield from ("--recipe", workload.name)
