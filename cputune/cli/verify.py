"""``cputune verify``: passes launch files to the programs that read them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cputune.cli import completing, help_groups
from cputune.cli.inputs import choose_python, python_option
from cputune.cli.option_defaults import ConfiguredCommand, fail_if_slower, json_option
from cputune.cli.output import console, print_json, print_line
from cputune.host import LiveHost
from cputune.records.shared_texts import TUNE_AGAIN, slower_beyond, slower_by
from cputune.report.writing import Block, Heading, Lines, Rows, print_blocks

if TYPE_CHECKING:
    from cputune.verifier import Outcome, Verification
    from cputune.verifier.records import State

SIGNS: dict[State, str] = {"passed": "✓", "failed": "✗", "not checked": "–"}


@click.command(name="verify", cls=ConfiguredCommand, groups=help_groups.VERIFY)
@click.argument("paths", nargs=-1, metavar="[FILE|DIR]...", shell_complete=completing.files)
@click.option(
    "--result",
    "--baseline",
    metavar="FILE",
    help="The result that the files must reproduce, with its throughput.",
    shell_complete=completing.results,
)
@click.option(
    "--steps",
    type=click.IntRange(3, 10_000),
    default=12,
    show_default=True,
    help="Optimizer steps of each launch, warm-up included.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1, 86_400),
    default=300.0,
    show_default=True,
    help="Seconds that one launch may take.",
)
@python_option
@click.option("--share-machine", is_flag=True, help="Run even while another process measures here.")
@click.option(
    "--ssh",
    metavar="COMMAND",
    default="ssh",
    show_default=True,
    help="The ssh command for the hosts of a launch on several nodes, e.g. 'ssh -F file'.",
)
@click.option("--submit", is_flag=True, help="Submit a Slurm job to the cluster.")
@click.option("--no-run", is_flag=True, help="Read the files only; start nothing.")
@json_option
@fail_if_slower
@click.pass_context
def command(ctx: click.Context, /, paths: tuple[str, ...], **options: Any) -> None:
    """Run launch files for a few steps and check what they do.

    Scripts are run by their launchers, and every rank reports its CPUs, threads and precision.
    Kubernetes documents are checked with the SDK models and the operators' rules. Without FILE:
    launch/, or the files of this folder.

    Exits with 0 if everything passed, with 1 if something failed or, with --fail-if-slower, is
    slower by more than that, and with 3 if something could not be checked.

    \b
    cputune verify launch/
    cputune verify launch/mpirun.sh --steps 30 --json > verify.json
    """
    from cputune.tuner.events import waiting_for
    from cputune.verifier import verify

    python = choose_python(options["python"])
    host = LiveHost(python)
    if options["python"] is not None:
        # Emitted scripts use this variable first.
        host = LiveHost(python, variables={"PYTHON": python.executable})
    lost_share = options["fail_if_slower"]
    share, on_event = None, None
    if lost_share is not None:
        share = slower_by(lost_share)
    if sys.stderr.isatty():

        def on_event(text: str) -> None:
            print_line(f"… {text}")

    default = "."
    if Path("launch").is_dir():
        default = "launch"
    verdicts = verify(
        paths or (default,),
        result=options["result"],
        host=host,
        steps=options["steps"],
        timeout_seconds=options["timeout"],
        run=not options["no_run"],
        on_event=on_event,
        share_machine=options["share_machine"],
        on_wait=lambda owner: print_line(waiting_for(owner)),
        ssh=options["ssh"],
        submit=options["submit"],
    )
    states = [verdict.state for verdict in verdicts]
    if options["json"]:
        summary = {state.replace(" ", "_"): states.count(state) for state in SIGNS}
        documents = [verdict.to_json() for verdict in verdicts]
        print_json({"schema": "cputune.verify/1", "verdicts": documents, "summary": summary})
    else:
        print_blocks(blocks(verdicts), console())
    lost = [v.path for v in verdicts if share is not None and slower_beyond(v.throughput, share)]
    for path in lost:
        print_line(f"slower by more than {lost_share} than it was tuned: {path}; {TUNE_AGAIN}")
    if lost:
        ctx.exit(1)
    ctx.exit(exit_code(verdicts))


def exit_code(verdicts: Sequence[Verification]) -> int:
    """1 if something failed, 3 if something was not checked, else 0."""
    states = {verdict.state for verdict in verdicts}
    if "failed" in states:
        return 1
    if "not checked" in states:
        return 3
    return 0


def blocks(verdicts: Sequence[Verification]) -> Iterator[Block]:
    """What was seen of each artefact, with the evidence of what failed."""
    for verdict in verdicts:
        checks = verdict.checks
        yield Heading(f"{verdict.path}  {verdict.format}: {verdict.state}")
        yield Rows(
            headings=("", "check", "what was seen", "by"),
            rows=tuple((SIGNS[c.state], c.name, c.summary, c.consumer or "") for c in checks),
            strong=frozenset(n for n, check in enumerate(checks) if check.state == "failed"),
        )
        yield Lines(tuple(chain.from_iterable(map(_details, checks))))


def _details(check: Outcome) -> Iterator[tuple[str, str]]:
    if check.state == "failed":
        for row in check.evidence:
            label, text = check.name, f"{row.what}: {row.seen}"
            if row.rank is not None:
                label += f", rank {row.rank}"
            if row.expected is not None:
                text += f" (expected {row.expected})"
            yield label, text
    if check.remedy:
        yield f"{check.name}, hint", check.remedy
