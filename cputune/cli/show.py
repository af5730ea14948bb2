"""``cputune show``: a result in the terminal."""

from __future__ import annotations

import sys

import click

from cputune.cli._output import console, print_json
from cputune.cli._results import complete_result, facts_or_none, format_option, opened


@click.command(name="show")
@click.argument("result", required=False, shell_complete=complete_result)
@format_option
@click.option("--all", "every", is_flag=True, help="Every plan, not the fastest alone.")
@click.option("--root", metavar="DIR", help="Draw the plan on a recorded machine.")
def command(result: str | None, format_: str, every: bool, root: str | None) -> None:
    """Show a result: the verdict, what to change and what it is worth, the launch, the plans.

    RESULT is what `cputune tune` wrote (cputune.json), an id of `cputune history`, or `last`. As
    csv there is a row for each trial, in the columns of `Result.to_frame`.

    \b
    cputune show
    cputune show last
    cputune show --format csv > trials.csv
    """
    from cputune.report.show import print_result
    from cputune.report.shown import Shown, csv_of_trials, document, markdown

    found, file = opened(result)
    if format_ == "csv":
        sys.stdout.write(csv_of_trials(found))
        return
    shown = Shown(result=found, file=file, facts=facts_or_none(root))
    if format_ == "json":
        print_json(document(shown))
    elif format_ == "markdown":
        sys.stdout.write(markdown(shown, every=every))
    else:
        print_result(shown, console(), every=every)
