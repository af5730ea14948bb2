"""``cputune doctor``: what is wrong with this machine for training, and how to mend it."""

from __future__ import annotations

import difflib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cputune.cli._output import console, print_json
from cputune.doctor import Diagnosis, Finding, Severity, diagnose
from cputune.errors import UsageError

if TYPE_CHECKING:
    from cputune.host import Host

_SEVERITIES = tuple(severity.value for severity in Severity)


@click.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="One document on stdout, nothing else.")
@click.option("--markdown", "as_markdown", is_flag=True, help="For pasting into an issue.")
@click.option("--print-fix", is_flag=True, help="The cures as one shell script.")
@click.option("--explain", metavar="CODE", help="The whole story of a check, with its thread.")
@click.option("--only", multiple=True, metavar="CODE|SEVERITY", help="Show these alone.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Leave this one out.")
@click.option(
    "--fail-on",
    type=click.Choice([*_SEVERITIES, "never"]),
    default="error",
    show_default=True,
    help="End with 1 where a finding is as bad as this.",
)
@click.option("--root", metavar="DIR", help="Look at a recorded machine (DIR/proc, DIR/sys).")
@click.option("-o", "--output", metavar="FILE", default="-", help="Write there; - is stdout.")
@click.option("--force", is_flag=True, help="Replace FILE where it exists.")
@click.pass_context
def command(
    ctx: click.Context,
    as_json: bool,
    as_markdown: bool,
    print_fix: bool,
    explain: str | None,
    only: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_on: str,
    root: str | None,
    output: str,
    force: bool,
) -> None:
    """Say what is wrong with this machine for training, and how to mend it.

    \b
    cputune doctor
    cputune doctor --json | jq .summary
    cputune doctor --explain quota-threads
    """
    if as_json + as_markdown + print_fix > 1:
        raise UsageError("--json, --markdown and --print-fix exclude each other")
    if explain is not None:
        _explain(explain)
        return
    for word in only:
        _known(word, (*_codes(), *_SEVERITIES))
    for word in ignore:
        _known(word, _codes())

    from cputune.probe import probe

    host = _host(root)
    diagnosis = diagnose(probe(host))
    diagnosis = replace(diagnosis, findings=_chosen(diagnosis.findings, only, ignore))
    _write(diagnosis, as_json, as_markdown, print_fix, output, force)
    if fail_on != "never" and diagnosis.at_least(Severity(fail_on)):
        ctx.exit(1)


def _host(root: str | None) -> Host:
    from cputune.host import LiveHost, RecordedHost

    return LiveHost() if root is None else RecordedHost(root)


def _chosen(
    findings: tuple[Finding, ...], only: tuple[str, ...], ignore: tuple[str, ...]
) -> tuple[Finding, ...]:
    return tuple(
        finding
        for finding in findings
        if finding.code not in ignore
        and (not only or finding.code in only or finding.severity.value in only)
    )


def _write(
    diagnosis: Diagnosis,
    as_json: bool,
    as_markdown: bool,
    print_fix: bool,
    output: str,
    force: bool,
) -> None:
    from cputune.report.diagnosis import document, markdown, print_text

    if output == "-" and as_json:
        print_json(document(diagnosis))
        return
    if output == "-" and not (as_markdown or print_fix):
        print_text(diagnosis, console())
        return
    if as_json:
        import json

        text = json.dumps(document(diagnosis), indent=2, ensure_ascii=False) + "\n"
    elif as_markdown:
        text = markdown(diagnosis)
    elif print_fix:
        from cputune.report.fixes import fix_script

        text = fix_script(diagnosis)
    else:
        import io

        buffer = io.StringIO()
        print_text(diagnosis, console(buffer))
        text = buffer.getvalue()
    if output == "-":
        sys.stdout.write(text)
        return
    from cputune.host import write_atomically

    write_atomically(Path(output), text, force=force)
    sys.stderr.write(f"wrote {output}\n")


def _explain(code: str) -> None:
    from cputune.doctor.registry import find_check
    from cputune.report.diagnosis import explain

    _known(code, _codes())
    check = find_check(code)
    assert check is not None
    click.echo(explain(check))


def _codes() -> tuple[str, ...]:
    from cputune.doctor.registry import CHECKS

    return tuple(check.code for check in CHECKS)


def _known(word: str, words: tuple[str, ...]) -> None:
    if word in words:
        return
    near = difflib.get_close_matches(word, words, n=3)
    hint = "did you mean " + " or ".join(near) if near else "docs/checks.md lists the codes"
    raise UsageError(f"no check is called {word!r}", hint=hint)
