"""Shell completion of the values of options and arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    import click

Completes = Callable[["click.Context", "click.Parameter", str], list[CompletionItem]]


def values(listed: Callable[[], Iterable[str]], *, several: bool = False) -> Completes:
    """Complete a word of a list, or with ``several`` of a comma-separated list."""

    def complete(
        ctx: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, last = "", "", incomplete
        if several:
            before, comma, last = incomplete.rpartition(",")
        completion_items: list[CompletionItem] = []
        for word in listed():
            if word.startswith(last):
                completion_items.append(CompletionItem(f"{before}{comma}{word}"))
        return completion_items

    return complete


def files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the name of a file."""
    return [CompletionItem(incomplete, type="file")]


def folders(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell complete the name of a folder."""
    return [CompletionItem(incomplete, type="dir")]


# Free text is not completed.
nothing = values(tuple)


def or_files(complete: Completes) -> Completes:
    """Complete a word of a list or, if none matches, the name of a file."""

    def both(
        ctx: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return complete(ctx, parameter, incomplete) or files(ctx, parameter, incomplete)

    return both


def _recipes() -> Iterable[str]:
    from cputune.plans.workload import recipe_names

    return recipe_names()


def _knobs() -> Iterable[str]:
    from cputune.plans.knobs import NAMES

    return NAMES


def _fixes() -> Iterable[str]:
    """``NAME=VALUE`` of each knob, or ``NAME=`` if the knob takes any number."""
    from cputune.plans.knobs import KNOBS
    from cputune.plans.values import as_text

    for knob in KNOBS:
        if knob.least is not None:
            yield f"{knob.name}="
        else:
            for value in knob.values:
                yield f"{knob.name}={as_text(value)}"


def _codes() -> Iterable[str]:
    from cputune.doctor.registry import all_checks

    return sorted(check.code for check in all_checks())


def _severities() -> Iterable[str]:
    from cputune.doctor.finding import Severity

    return [severity.value for severity in Severity] + list(_codes())


def _results() -> Iterable[str]:
    from cputune.records.history import LAST, kept_ids

    ids = kept_ids()
    if not ids:
        return ()
    return (LAST, *ids)


def _dialects() -> Iterable[str]:
    from cputune.launch.launchers.mpirun import DIALECTS

    return tuple(DIALECTS)


def _kept() -> Iterable[str]:
    from cputune.records.options import KEEP

    return KEEP


recipes = or_files(values(_recipes))
results = or_files(values(_results))
codes = values(_codes)
several_codes = values(_codes, several=True)
codes_and_severities = values(_severities, several=True)

# Options that records define (``cputune.records.options``), by their field.
OF_OPTIONS: dict[str, Completes] = {
    "knobs": values(_knobs, several=True),
    "fix": values(_fixes),
    "keep": values(_kept),
    "mpi": values(_dialects),
    "study": files,
    "max_time_seconds": values(lambda: ("none",)),
}

HOSTS = values(lambda: ("slurm", "none"))
PLANS = values(lambda: ("best", "baseline"))
PYTHONS = files
