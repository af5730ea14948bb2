"""Shows results: ``show``, ``compare``, ``history`` and ``report``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cputune.cli import completing
from cputune.cli.inputs import (
    choose_python,
    facts_of,
    facts_or_none,
    launched,
    opened,
    python_option,
)
from cputune.cli.option_defaults import (
    ConfiguredCommand,
    fail_if_slower,
    json_option,
    output_option,
)
from cputune.cli.output import console, print_json, print_line
from cputune.errors import CannotError, UsageError
from cputune.records.options import DEFAULT_LIMIT_SECONDS, seconds_of
from cputune.records.shared_texts import YOURS, slower_by
from cputune.records.written_files import write_own

if TYPE_CHECKING:
    from cputune.report.writing import Block


def _print(blocks: Iterable[Block], document: Callable[[], object], *, json: bool) -> None:
    from cputune.report.writing import print_blocks

    if json:
        print_json(document())
    else:
        print_blocks(blocks, console())


_result_argument = click.argument("result", required=False, shell_complete=completing.results)


@click.command(name="show", cls=ConfiguredCommand)
@_result_argument
@json_option
@click.option("--all", is_flag=True, help="All of it: the plans, the launch, the basis.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the trials as CSV, a line each.")
def show(result: str | None, json: bool, all: bool, as_markdown: bool, as_csv: bool) -> None:
    """Show a result: the verdict, the launch, what to change and what it brings.

    RESULT is what `cputune tune` wrote (cputune.json), an id of `cputune history`, or `last`.

    \b
    cputune show
    cputune show last
    cputune show --json | jq .speedup
    cputune show --csv > trials.csv
    """
    if json + as_markdown + as_csv > 1:
        raise UsageError("--json, --markdown and --csv exclude each other", hint="give one of them")
    from cputune.report.answer import end_blocks
    from cputune.report.show import ResultToShow, blocks, document

    loaded, file = opened(result)
    if as_csv:
        from cputune.report.trials import trials_csv

        click.echo(trials_csv(loaded), nl=False)
        return
    shown = ResultToShow(result=loaded, file=file, facts=facts_or_none())
    if all:
        chosen = blocks(shown)
    else:
        chosen = end_blocks(shown)
    if as_markdown:
        from cputune.report.markdown import markdown

        click.echo(markdown(chosen, f"cputune: {loaded.workload.name}"), nl=False)
        return
    _print(chosen, lambda: document(shown), json=json)


@click.command(name="compare", cls=ConfiguredCommand)
@click.argument("before", shell_complete=completing.results)
@click.argument("after", required=False, shell_complete=completing.results)
@json_option
@fail_if_slower
@click.option(
    "--max-time",
    metavar="TIME",
    help="Time limit: 90s, 10m. Default: 3m.",
    shell_complete=completing.nothing,
)
@click.option("--share-machine", is_flag=True, help="Measure even while others measure here.")
@python_option
@click.pass_context
def compare(ctx: click.Context, /, before: str, after: str | None, **typed: Any) -> None:
    """Measure the best plans of two results side by side, now, on this machine.

    A result is a file, an id of `cputune history`, or `last`. With one result, its best plan is
    compared with your current launch. The ratio is AFTER over BEFORE, with its 95 % interval; if
    that includes 1, no difference is shown. If one of them cannot run here (another training or
    machine), the command lists the differences and prints no ratio.

    Exits with 0. With --fail-if-slower it exits with 1 if the whole interval is slower by more than
    that, and with 3 if nothing could be measured.

    \b
    cputune compare cputune.json
    cputune compare before.json after.json
    cputune compare before.json after.json --fail-if-slower 5%
    """
    from cputune.cli.progress import progress
    from cputune.report import result_comparison as page
    from cputune.tuner.comparing import compare as measure, why_not_here

    started = time.monotonic()
    share, most, second = None, None, None
    if typed["fail_if_slower"] is not None:
        share = slower_by(typed["fail_if_slower"])
    if typed["max_time"] is not None:
        most = seconds_of(typed["max_time"])
    first = opened(before)[0]
    if after is not None:
        second = opened(after)[0]
    python = choose_python(typed["python"], first.workload.argv)
    facts = facts_of(python=python)
    if why_not_here(first, second, facts) is None:
        first = replace(first, workload=launched(first, None))
    with progress(started, most or DEFAULT_LIMIT_SECONDS / 2) as on_event:
        comparison = measure(
            first,
            second,
            facts=facts,
            on_event=on_event,
            max_time_seconds=most,
            share_machine=typed["share_machine"],
            started=started,
        )
    shown = page.ComparisonToShow(
        comparison=comparison, before=first, after=second, first=before, second=after or YOURS
    )
    _print(page.blocks(shown), lambda: page.document(shown), json=typed["json"])
    if share is None or comparison.is_same_plan:
        return
    if comparison.speedup is None:
        raise CannotError(
            f"nothing was measured, so it is not known which is slower: {comparison.not_compared}",
            hint=page.TUNE_BOTH,
        )
    lost = page.slower(shown, share)
    if lost is not None:
        print_line(f"slower: {lost}")
        ctx.exit(1)


@click.command(name="history", cls=ConfiguredCommand)
@json_option
def history(json: bool) -> None:
    """List the results of earlier studies, the newest first.

    `cputune tune` keeps each result under ~/.local/state/cputune ($XDG_STATE_HOME), readable only
    by you; --no-history does not. `cputune show ID` prints one; compare, emit and run also take an
    ID.

    \b
    cputune history
    cputune show last
    """
    from cputune.records.history import MOST_KEPT, history_folder, kept_results
    from cputune.report.show import history_document, history_rows
    from cputune.report.writing import Lines

    kept = kept_results()
    lines = Lines((("", "There are no results yet. Run `cputune tune` to make one."),))
    listing: tuple[Block, ...] = (lines,)
    if kept:
        place = (
            f"Stored in {history_folder()}, the newest {MOST_KEPT}. One of them: cputune show ID"
        )
        listing = (history_rows(kept), Lines((("", place),)))
    _print(listing, lambda: history_document(kept), json=json)


@click.command(name="report", cls=ConfiguredCommand)
@_result_argument
@output_option("The page; - prints it.", "report.html")
@click.option("--force", is_flag=True, help="Replace FILE, also if cputune did not write it.")
@click.option("--open", "shown", is_flag=True, help="Open the page in a browser.")
def report(result: str | None, output: str, force: bool, shown: bool) -> None:
    """Write a result as one HTML page that needs no network.

    RESULT is what `cputune tune` wrote (cputune.json), on any machine, or an id of `cputune
    history`.

    \b
    cputune report
    cputune report cputune.json -o report.html
    """
    if shown and output == "-":
        raise UsageError("--open needs a file", hint="-o report.html")
    if not Path(output).parent.is_dir():
        folder = Path(output).parent
        raise UsageError(f"the directory {folder} does not exist", hint=f"mkdir -p {folder}")
    loaded, name = opened(result)

    from cputune.report.page import page

    text = page(loaded, name, facts_or_none())
    mode = 0o644
    if loaded.workload.argv:
        mode = 0o600  # arguments may be private
    if output == "-":
        sys.stdout.write(text)
        return
    write_own(Path(output), text, force=force, mode=mode)
    written = f"wrote {output}, one file of {len(text.encode()) / 1e3:.0f} kB"
    if shown and click.launch(str(Path(output).absolute())) == 0:
        print_line(written)
    else:
        print_line(f"{written}: open it in a browser")
