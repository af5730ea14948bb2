"""Results that a command reads: files, and those of the history by their ids."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from cputune.cli._tuned import DEFAULT_RESULT
from cputune.errors import CputuneError, ResultError
from cputune.result import Result

if TYPE_CHECKING:
    from cputune.facts import HostFacts

FORMATS = ("table", "markdown", "csv", "json")


def format_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--format``, the same wherever results are shown."""
    return click.option(
        "-f",
        "--format",
        "format_",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="How it is written.",
    )(command)


def complete_result(
    ctx: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Ids of the history that begin so; files where none does."""
    from cputune.history import kept_results

    ids = [kept.id for kept in kept_results() if kept.id.startswith(typed)] if typed else []
    return [CompletionItem(id) for id in ids] or [CompletionItem(typed, type="file")]


def opened(word: str | None) -> tuple[Result, str]:
    """A result, and the word by which commands name it. Raises CputuneError."""
    from cputune.history import result_path

    if word is None and not DEFAULT_RESULT.exists():
        raise ResultError(
            f"there is no {DEFAULT_RESULT} here",
            hint="`cputune tune` makes one, `cputune history` lists earlier ones",
        )
    path = DEFAULT_RESULT if word is None else result_path(word)
    kept = word is not None and path != Path(word)
    return Result.load(path), path.stem if kept else str(path)


def facts_or_none(root: str | None) -> HostFacts | None:
    """The machine to draw plans on; None where this one cannot be read: a result needs none."""
    from cputune.cli._tuned import facts_of

    try:
        return facts_of(root)
    except CputuneError:
        if root is not None:
            raise
        return None


def remember(result: Result, destination: Path | None) -> None:
    """Keep a result in the history. Never fails: what tune found does not hang on it."""
    from cputune.emitters.header import machine
    from cputune.history import keep

    now = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    keep(result, machine=machine(result.host), file=destination, now=now)
