"""Shows results: ``show``, ``compare``, ``history`` and ``report``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cputune.cli.given import facts_or_none, opened
from cputune.cli.output import console, print_json, tell
from cputune.cli.settings import ConfiguredCommand, fail_if_slower, json_option, output_option
from cputune.errors import UsageError
from cputune.host import write_atomically
from cputune.words import slower_by

if TYPE_CHECKING:
    from cputune.report.writing import Block


def _print(blocks: Iterable[Block], document: Callable[[], object], *, json: bool) -> None:
    from cputune.report.writing import print_blocks

    if json:
        print_json(document())
    else:
        print_blocks(blocks, console())


_result_argument = click.argument("result", required=False)


@click.command(name="show", cls=ConfiguredCommand)
@_result_argument
@json_option
@click.option("--all", is_flag=True, help="Every plan, and what was left out and why.")
def show(result: str | None, json: bool, all: bool) -> None:
    """Show a result: the verdict, what to change and what it is worth, the launch, the plans.

    RESULT is what `cputune tune` wrote (cputune.json), an id of `cputune history`, or `last`.

    \b
    cputune show
    cputune show last
    cputune show --json | jq .speedup
    """
    from cputune.report.show import MOST_PLANS, ResultToShow, blocks, document

    found, file = opened(result)
    shown = ResultToShow(result=found, file=file, facts=facts_or_none())
    told = blocks(shown, most=None if all else MOST_PLANS, every=all)
    _print(told, lambda: document(shown), json=json)


@click.command(name="compare", cls=ConfiguredCommand)
@click.argument("before")
@click.argument("after")
@json_option
@fail_if_slower
@click.pass_context
def compare(
    ctx: click.Context, before: str, after: str, json: bool, fail_if_slower: str | None
) -> None:
    """Compare two results: today's launch with today's, best plan with best.

    A result is a file, an id of `cputune history`, or `last`. A ratio is said with its 95 %
    interval, and where that holds 1 no difference can be told. Results of different work are not
    compared; of different machines, arguments, data or versions it is said that they are.

    Ends with 0 where they were compared, 3 where they cannot be, and 1 where the best plan on the
    same machine is slower beyond doubt by more than 5 %, or by what --fail-if-slower says: the
    whole interval lies below.

    \b
    cputune compare before.json after.json
    cputune compare before.json after.json --fail-if-slower 5%
    cputune compare 20261121-193000 last
    """
    from cputune.report import compare as page

    share = slower_by(fail_if_slower or page.SLOWER)
    (reference, _), (other, _) = opened(before), opened(after)
    found = page.compare(reference, other, name=after)
    told = page.blocks(before, reference, found)
    _print(told, lambda: page.document(before, reference, found), json=json)
    lost = page.slower(found, share) if fail_if_slower or not found.other_machine else None
    if lost is not None:
        tell(f"slower: {lost}")
        ctx.exit(1)


@click.command(name="history", cls=ConfiguredCommand)
@json_option
def history(json: bool) -> None:
    """List the results of earlier studies, the newest first.

    `cputune tune` keeps each result under ~/.local/state/cputune (below $XDG_STATE_HOME), for
    the user alone; --no-history leaves it out. `cputune show ID` opens one; compare, emit and run
    take an ID, too.

    \b
    cputune history
    cputune show last
    """
    from cputune.history import MOST_KEPT, history_folder, kept_results
    from cputune.report.show import history_document, history_rows
    from cputune.report.writing import Lines

    kept = kept_results()
    where = "Nothing was tuned yet, or nothing was kept: cputune tune"
    if kept:
        where = f"Kept in {history_folder()}, the newest {MOST_KEPT}. One of them: cputune show ID"
    told = (*([history_rows(kept)] if kept else ()), Lines((("", where),)))
    _print(told, lambda: history_document(kept), json=json)


@click.command(name="report", cls=ConfiguredCommand)
@_result_argument
@output_option("The page; - prints it.", "report.html")
@click.option("--force", is_flag=True, help="Replace FILE where it exists.")
def report(result: str | None, output: str, force: bool) -> None:
    """Write a result as one page of HTML that needs no network.

    RESULT is what `cputune tune` wrote (cputune.json), on this machine or on another one, or an
    id of `cputune history`.

    \b
    cputune report
    cputune report cputune.json -o report.html
    """
    if not Path(output).parent.is_dir():
        said = f"there is no directory {Path(output).parent}"
        raise UsageError(said, hint="make it, or choose another")
    found, name = opened(result)

    from cputune.report.page import page

    text = page(found, name)
    mode = 0o600 if found.workload.argv else 0o644  # the page is as private as the result itself
    if output == "-":
        sys.stdout.write(text)
        return
    write_atomically(Path(output), text, force=force, mode=mode)
    tell(f"wrote {output}, one file of {len(text.encode()) / 1e3:.0f} kB: open it in a browser")
