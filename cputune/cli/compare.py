"""``cputune compare``: results beside each other."""

from __future__ import annotations

import sys

import click

from cputune.cli._output import console, print_json
from cputune.cli._results import complete_result, format_option, opened
from cputune.errors import ResultError, UsageError


@click.command(name="compare")
@click.argument("results", nargs=-1, required=True, shell_complete=complete_result)
@format_option
@click.pass_context
def command(ctx: click.Context, results: tuple[str, ...], format_: str) -> None:
    """Compare results with the first: today's launch with today's, best plan with best.

    A result is a file, an id of `cputune history`, or `last`. A ratio is said with its 95 %
    interval, and where that holds 1 no difference can be told. Results of different work are not
    compared; of different machines, arguments, data or versions it is said that they are.

    Ends with 0 where all were compared, 3 where one could not be.

    \b
    cputune compare before.json after.json
    cputune compare 20261121-193000 last --format markdown
    """
    from cputune.report.compare import document, markdown, print_comparison, rows_csv
    from cputune.report.comparison import compare

    if len(results) < 2:
        raise UsageError(
            "there is nothing to compare it with", hint="cputune compare before.json after.json"
        )
    (reference, _), *others = [opened(word) for word in results]
    first, *names = results
    compared = tuple(
        compare(reference, other, name=name) for name, (other, _) in zip(names, others, strict=True)
    )
    refused = [f"{one.name}: {one.refused}" for one in compared if one.refused is not None]
    if len(refused) == len(compared):
        raise ResultError(
            f"nothing can be compared with {first}: {compared[0].refused}",
            hint="tune the same work twice, and compare those results",
            details="\n".join(refused) if len(refused) > 1 else None,
        )
    if format_ == "json":
        print_json(document(first, reference, compared))
    elif format_ == "csv":
        sys.stdout.write(rows_csv(first, reference, compared))
    elif format_ == "markdown":
        sys.stdout.write(markdown(first, reference, compared))
    else:
        print_comparison(first, reference, compared, console())
    if refused:
        ctx.exit(ResultError.exit_code)
