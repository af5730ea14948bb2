"""``cputune history``: the results that were kept."""

from __future__ import annotations

import sys

import click

from cputune.cli._output import console, print_json
from cputune.cli._results import format_option
from cputune.visible import visible


@click.command(name="history")
@format_option
def command(format_: str) -> None:
    """List the results of earlier studies, the newest first.

    `cputune tune` keeps each result under ~/.local/state/cputune (below $XDG_STATE_HOME), for
    the user alone; --no-history leaves it out. `cputune show ID` opens one; compare, emit and run
    take an ID, too.

    \b
    cputune history
    cputune show last
    """
    from cputune.history import MOST_KEPT, history_folder, kept_results
    from cputune.report.history import document, history_rows
    from cputune.report.writing import csv_text, markdown_table, rich_table

    kept = kept_results()
    if format_ == "json":
        print_json(document(kept))
    elif format_ == "csv":
        table = history_rows(kept)
        sys.stdout.write(csv_text(table.headings, table.rows))
    elif format_ == "markdown":
        sys.stdout.write("\n".join(markdown_table(history_rows(kept))) + "\n")
    elif kept:
        out = console()
        out.print(rich_table(history_rows(kept)))
        out.print()
        place = visible(str(history_folder()))
        out.print(f"Kept in {place}, the newest {MOST_KEPT}. One of them: cputune show ID")
    else:
        console().print("Nothing was tuned yet, or nothing was kept: cputune tune")
