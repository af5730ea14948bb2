"""``cputune report``: what a study has found, as one page for a browser."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cputune.cli._output import tell
from cputune.cli._results import complete_result, opened
from cputune.errors import UsageError
from cputune.host import write_atomically


@click.command(name="report")
@click.argument("result", required=False, shell_complete=complete_result)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="report.html",
    show_default=True,
    help="The page; - prints it.",
)
@click.option("--force", is_flag=True, help="Replace FILE where it exists.")
def command(result: str | None, output: str, force: bool) -> None:
    """Write a result as one page of HTML, with pictures, that needs no network.

    RESULT is what `cputune tune` wrote (cputune.json), on this machine or on another one, or an
    id of `cputune history`.

    \b
    cputune report
    cputune report cputune.json -o report.html
    """
    target = Path(output)
    if output != "-" and target.exists() and not force:  # said before the work, not after
        raise UsageError(f"{target} exists already", hint="give --force to replace it")
    found, name = opened(result)

    from cputune.report.page import page

    text = page(found, name)
    if output == "-":
        sys.stdout.write(text)
        return
    mode = 0o600 if found.workload.argv else 0o644  # as the result itself
    write_atomically(target, text, force=force, mode=mode)
    tell(
        f"the report is in {target}: {len(text.encode()) / 1e6:.1f} MB, all of it in this one file"
    )
