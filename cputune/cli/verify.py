"""``cputune verify``: launch files, handed to their real consumers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cputune.cli.given import choose_python, facts_or_none, python_option
from cputune.cli.output import console, print_json, tell, verbosity
from cputune.cli.settings import (
    ConfiguredCommand,
    fail_if_slower,
    force_option,
    json_option,
    option,
)
from cputune.errors import ResultError, UsageError
from cputune.host import write_atomically
from cputune.host.interpreter import training_python

if TYPE_CHECKING:
    from rich.console import Console

    from cputune.verifier import Outcome, Verification
    from cputune.verifier.records import State

SCHEMA = "cputune.verify/1"
SIGNS: dict[State, tuple[str, str]] = {
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
    "not checked": ("–", "yellow"),
}


@click.command(name="verify", cls=ConfiguredCommand)
@click.argument("paths", nargs=-1, metavar="[FILE|DIR]...")
@option(
    "--result",
    "--baseline",
    metavar="FILE",
    help="The result that the files must reproduce, and its speed.",
)
@option(
    "--steps",
    type=click.IntRange(3, 10_000),
    default=12,
    show_default=True,
    folder=True,
    help="Optimizer steps of each launch, warm-up included.",
)
@option(
    "--timeout",
    type=click.FloatRange(1, 86_400),
    default=300.0,
    show_default=True,
    folder=True,
    help="Seconds that one launch may take.",
)
@python_option
@option("--share-machine", is_flag=True, help="Run even while another process measures here.")
@option(
    "--ssh",
    metavar="COMMAND",
    default="ssh",
    show_default=True,
    why_not="it names a program that is started",
    help="Reaches the hosts of a launch on several nodes, e.g. 'ssh -F file'.",
)
@option("--submit", is_flag=True, help="Hand the Slurm job to a cluster of other machines.")
@option("--no-run", is_flag=True, help="Read the files only; start nothing.")
@json_option
@option("--markdown", is_flag=True, help="A table for a pull request or a job's summary.")
@option(
    "--report",
    metavar="FILE",
    help="Write that document to FILE as well.",
    why_not="it names a file that is written",
)
@fail_if_slower
@force_option
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[str, ...],
    result: str | None,
    steps: int,
    timeout: float,
    python: str | None,
    share_machine: bool,
    ssh: str,
    submit: bool,
    no_run: bool,
    as_json: bool,
    markdown: bool,
    report: str | None,
    fail_if_slower: str | None,
    force: bool,
) -> None:
    """Hand launch files to their real consumers and say what those did.

    Scripts are run by their launchers for a few steps, and every rank says which CPUs,
    threads and precision it really has; Kubernetes documents go through the SDK models,
    the operators' rules and the API schema. Without FILE: launch/, or what lies here.

    Ends with 0 where everything passed, 1 where something failed or, with --fail-if-slower, lost
    more speed than that, 3 where something could not be checked.

    \b
    cputune verify launch/
    cputune verify launch/mpirun.sh --steps 30 --report verify.json
    """
    from cputune.report.tuning import waiting_line
    from cputune.verifier import verify
    from cputune.words import TUNE_AGAIN, slower_by, surely_slower

    choose_python(python)
    if python is not None:
        os.environ["PYTHON"] = training_python()  # whom emitted scripts ask first
    share = None if fail_if_slower is None else slower_by(fail_if_slower)
    if report is not None:
        _writable(Path(report), force=force)
    quiet = as_json or verbosity() < 0 or not sys.stderr.isatty()
    verdicts = verify(
        paths or default_paths(),
        result=result,
        steps=steps,
        timeout_seconds=timeout,
        run=not no_run,
        on_event=None if quiet else lambda text: tell(f"… {text}"),
        share_machine=share_machine,
        on_wait=lambda owner: tell(waiting_line(owner)),
        ssh=ssh,
        submit=submit,
    )
    document = to_document(verdicts)
    if as_json:
        print_json(document)
    elif markdown:
        print_markdown(verdicts)
    else:
        print_text(verdicts)
    if result is not None and (changes := _changes(result)):
        tell(f"note: {'; '.join(changes)}: {TUNE_AGAIN}")
    if report is not None:
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        write_atomically(Path(report), text, force=force)
    lost = [v.path for v in verdicts if share is not None and surely_slower(v.throughput, share)]
    for path in lost:
        tell(f"slower by more than {fail_if_slower} than it was tuned: {path}; {TUNE_AGAIN}")
    ctx.exit(1 if lost else exit_code(verdicts))


def _writable(path: Path, *, force: bool) -> None:
    """Said before minutes of work, not after. Raises UsageError."""
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", hint="give --force to replace it")
    if not path.parent.is_dir():
        raise UsageError(f"there is no directory {path.parent}", hint="make it, or choose another")


def _changes(result: str) -> tuple[str, ...]:
    """What has changed here since the result was measured; nothing where it cannot be read."""
    from cputune.emitters.header import changed_since
    from cputune.result import Result

    facts = facts_or_none(None)
    try:
        return () if facts is None else changed_since(Result.load(result), facts)
    except ResultError:
        return ()


def print_markdown(verdicts: tuple[Verification, ...]) -> None:
    """A row for each artefact, with what failed and the speed over that of the result."""
    from cputune.report.writing import Rows, markdown_table
    from cputune.words import factor

    rows = tuple(
        (
            verdict.path,
            verdict.state,
            "–" if verdict.throughput is None else factor(verdict.throughput),
            "; ".join(check.summary for check in verdict.checks if check.state == "failed"),
        )
        for verdict in verdicts
    )
    table = Rows(headings=("launch", "state", "speed over its result", "what failed"), rows=rows)
    click.echo("\n".join(("## cputune verify", "", *markdown_table(table))))


def default_paths() -> tuple[str, ...]:
    """Where ``make tune`` puts its launch files, else the current directory."""
    return ("launch",) if Path("launch").is_dir() else (".",)


def to_document(verdicts: tuple[Verification, ...]) -> dict[str, object]:
    """The versioned document of ``--json`` and ``--report``."""
    states = [verdict.state for verdict in verdicts]
    return {
        "schema": SCHEMA,
        "verdicts": [verdict.to_json() for verdict in verdicts],
        "summary": {state.replace(" ", "_"): states.count(state) for state in SIGNS},
    }


def exit_code(verdicts: tuple[Verification, ...]) -> int:
    """1 where something failed, 3 where something was not checked, else 0."""
    states = {verdict.state for verdict in verdicts}
    if "failed" in states:
        return 1
    return 3 if "not checked" in states else 0


def print_text(verdicts: tuple[Verification, ...]) -> None:
    """What was seen, artefact by artefact, the details of what failed below it."""
    from rich.text import Text

    from cputune.text import visible

    out = console()
    for verdict in verdicts:
        sign, color = SIGNS[verdict.state]
        title = Text(f"{sign} ", style=color)
        title.append(visible(verdict.path), style="bold")
        title.append(visible(f"  {verdict.format}: {verdict.state}"))
        out.print(title)
        before = None
        for check in verdict.checks:
            _print_check(out, check, said=check.consumer == before)
            before = check.consumer
        out.print()
    counts = [(state, sum(v.state == state for v in verdicts)) for state in SIGNS]
    out.print(", ".join(f"{count} {state}" for state, count in counts if count))


def _print_check(out: Console, check: Outcome, *, said: bool) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from cputune.text import visible

    sign, color = SIGNS[check.state]
    line = Text("").append(f"{sign} ", style=color).append(f"{check.name:<19}")
    line.append(visible(check.summary))
    if check.consumer and not said:
        line.append(f"  [{check.consumer}]", style="dim")
    out.print(Padding(line, (0, 0, 0, 2)))
    if check.state == "failed":
        for row in check.evidence:
            where = "" if row.rank is None else f"rank {row.rank}, "
            expected = "" if row.expected is None else f" (expected {row.expected})"
            text = visible(f"{where}{row.what}: {row.seen}{expected}")
            out.print(Padding(Text(text), (0, 0, 0, 23)))
    if check.remedy:
        out.print(Padding(Text(visible(f"→ {check.remedy}"), style="dim"), (0, 0, 0, 23)))
