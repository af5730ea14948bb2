"""``cputune doctor``: what is wrong with this machine for training, and how to mend it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cputune.cli._doctor_hosts import diagnose_hosts, hosts_text, print_hosts
from cputune.cli._explained import codes, explained, known
from cputune.cli._hosts import chosen_hosts, host_options, reach_options
from cputune.cli._output import console, json_text, tell, verbosity
from cputune.doctor import Check, Diagnosis, Finding, Severity, by_severity, diagnose
from cputune.doctor.finding import FoundOn
from cputune.errors import CannotError, UsageError
from cputune.host import read_document

if TYPE_CHECKING:
    from cputune.host import Host

_SEVERITIES = tuple(severity.value for severity in Severity)


@click.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="One document on stdout, nothing else.")
@click.option("--markdown", "as_markdown", is_flag=True, help="For pasting into an issue.")
@click.option("--print-fix", is_flag=True, help="The cures as one shell script.")
@click.option(
    "--explain",
    is_flag=False,
    flag_value="",
    metavar="[CODE]",
    help="The whole story of a check, with its threads; without CODE a list of all checks.",
)
@click.option("--all", "everything", is_flag=True, help="Also what was looked for and is fine.")
@click.option("--only", multiple=True, metavar="CODE|SEVERITY,…", help="Show these alone.")
@click.option("--ignore", multiple=True, metavar="CODE,…", help="Leave these out.")
@click.option(
    "--fail-on",
    type=click.Choice([*_SEVERITIES, "never"]),
    default="error",
    show_default=True,
    help="End with 1 where a finding is as bad as this.",
)
@click.option("--root", metavar="DIR", help="Look at a recorded machine (DIR/proc, DIR/sys).")
@click.option("--record", metavar="DIR", help="Record this machine for --root, without names.")
@click.option("--python", metavar="PATH", help="Examine the packages of another interpreter.")
@click.option("--deep", is_flag=True, help="Also start children that import and measure.")
@click.option("--stack", metavar="torch=2.6.0,…", help="Judge versions that are not installed.")
@host_options
@reach_options
@click.option("--launch", metavar="PATH", help="With hosts: what must lie on all, alike.")
@click.option("--check-file", metavar="FILE", help="Judge an accelerate YAML, command or job.")
@click.option("-o", "--output", metavar="FILE", default="-", help="Write there; - is stdout.")
@click.option("--force", is_flag=True, help="Replace FILE where it exists.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    as_json: bool,
    as_markdown: bool,
    print_fix: bool,
    explain: str | None,
    everything: bool,
    only: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_on: str,
    root: str | None,
    record: str | None,
    deep: bool,
    stack: str | None,
    check_file: str | None,
    python: str | None,
    output: str,
    force: bool,
    launch: str | None,
    **others: Any,
) -> None:
    """Say what is wrong with this machine for training, and how to mend it.

    \b
    cputune doctor
    cputune doctor --all
    cputune doctor --json | jq .summary
    cputune doctor --explain quota-threads
    cputune doctor --stack torch=2.6.0
    cputune doctor --hosts node1,node2 --launch launch/
    """
    if as_json + as_markdown + print_fix > 1:
        raise UsageError("--json, --markdown and --print-fix exclude each other")
    if sum(asked is not None for asked in (explain, record, stack or check_file)) > 1:
        raise UsageError("--explain, --record and --stack or --check-file exclude each other")
    if everything and (stack is not None or check_file is not None):
        raise UsageError(
            "--all tells what is fine with a machine", hint="leave --stack and --check-file away"
        )
    if deep and (root is not None or stack is not None or check_file is not None):
        raise UsageError(
            "--deep looks at the live machine",
            hint="leave --root, --stack and --check-file away",
        )
    if python is not None and (root is not None or stack is not None):
        raise UsageError(
            "--python names an interpreter of this machine", hint="leave --root and --stack away"
        )
    form = "json" if as_json else "markdown" if as_markdown else "fix" if print_fix else "text"
    if explain is not None:
        _put(explained(explain, as_json=as_json), output, force)
        return
    chosen = _chooser(_words(only, (*codes(), *_SEVERITIES)), _words(ignore, codes()))
    alone = root is not None or record is not None or stack is not None or check_file is not None
    hosts = chosen_hosts(**others, allocation=not alone)
    if hosts is not None and alone:
        raise UsageError(
            "--hosts looks at live machines",
            hint="leave --root, --record, --stack and --check-file away",
        )
    if hosts is not None:
        if everything or form == "fix":
            raise UsageError(
                "--all and --print-fix are about one machine", hint="--hosts none, on that machine"
            )
        seen = diagnose_hosts(hosts, python=python, launch=launch, deep=deep).only(chosen)
        if output == "-" and form == "text":
            print_hosts(seen, console())
        else:
            _put(hosts_text(seen, form), output, force)
        _end(ctx, seen, fail_on)
        return
    if launch is not None:
        raise UsageError("--launch is compared between hosts", hint="name them: --hosts a,b")
    host = _host(root, python)
    if record is not None:
        if form != "text":
            raise UsageError("--record writes a directory, and no document")
        _keep(host, record)
        return
    diagnosis = _diagnose(host, deep=deep, stack=stack, check_file=check_file)
    if python is not None:
        diagnosis = diagnosis.for_python(host.executable)
    diagnosis = diagnosis.only(chosen)
    if everything:
        diagnosis = _with_what_is_fine(diagnosis, chosen)
    about_machine = stack is None and check_file is None
    if form == "fix":
        from cputune.report.fixes import fix_script

        again = chosen if about_machine else lambda finding: False
        _put(fix_script(diagnosis, chosen=again), output, force)
    elif output == "-" and form == "text":
        from cputune.report.diagnosis import print_text

        print_text(diagnosis, console(), machine=about_machine, stories=verbosity() > 0)
    else:
        text = _rendered(diagnosis, form, host, machine=about_machine, stories=verbosity() > 0)
        _put(text, output, force)
    _end(ctx, diagnosis, fail_on)


def _end(ctx: click.Context, diagnosis: FoundOn, fail_on: str) -> None:
    if fail_on != "never" and diagnosis.at_least(Severity(fail_on)):
        ctx.exit(1)


def _host(root: str | None, python: str | None) -> Host:
    from cputune.host import LiveHost, RecordedHost

    return LiveHost(python) if root is None else RecordedHost(root)


def _diagnose(host: Host, *, deep: bool, stack: str | None, check_file: str | None) -> Diagnosis:
    from cputune.probing import probe

    facts = probe(host)
    if check_file is not None:
        from cputune.doctor.checkfile import check_file as judge_file
        from cputune.doctor.named_stack import stack_facts

        judged = facts if stack is None else stack_facts(stack, facts)
        name = "stdin" if check_file == "-" else check_file
        return Diagnosis(facts=facts, findings=judge_file(_text_of(check_file), name, judged, host))
    if stack is not None:
        from cputune.doctor.named_stack import judge_stack

        return Diagnosis(facts=facts, findings=judge_stack(stack, facts))
    from cputune.doctor.configured import configured_findings

    found = (*diagnose(facts).findings, *configured_findings(facts, host))
    if deep:
        from cputune.doctor.deep import deep_findings

        found += deep_findings(facts, host)
    return Diagnosis(facts=facts, findings=by_severity(found))


def _with_what_is_fine(
    diagnosis: Diagnosis, chosen: Callable[[Finding | Check], bool]
) -> Diagnosis:
    """The same with every check of the facts, those of files and children left out."""
    from cputune.doctor.looked import looked_at

    found = {finding.code for finding in (*diagnosis.findings, *diagnosis.hidden)}
    looked = looked_at(diagnosis.facts, found)
    return replace(diagnosis, looked=tuple(row for row in looked if chosen(row.check)))


MOST_CHARACTERS = 16 << 20
"""Of what is piped into ``--check-file -``; a file may have as many bytes."""


def _text_of(path: str) -> str:
    try:
        return sys.stdin.read(MOST_CHARACTERS) if path == "-" else read_document(path)
    except OSError as error:
        raise CannotError(
            f"cannot read {path}: {error.strerror or error}", hint="give a file, or - for stdin"
        ) from error


def _keep(host: Host, directory: str) -> None:
    from cputune.probing.recording import record

    record(host, directory)
    tell(f"recorded this machine in {directory}; look at it before you share it")


def _words(options: tuple[str, ...], choices: tuple[str, ...]) -> frozenset[str]:
    """The words of options that may be given several times, and hold lists with commas."""
    words = [word.strip() for option in options for word in option.split(",") if word.strip()]
    for word in words:
        known(word, choices)
    return frozenset(words)


def _chooser(only: frozenset[str], ignore: frozenset[str]) -> Callable[[Finding | Check], bool]:
    def chosen(finding: Finding | Check) -> bool:
        wanted = not only or finding.code in only or finding.severity.value in only
        return wanted and finding.code not in ignore

    return chosen


def _rendered(diagnosis: Diagnosis, form: str, host: Host, *, machine: bool, stories: bool) -> str:
    """What may leave the machine names neither it nor its users; cures stay as they are run."""
    from cputune.probing.scrub import Scrubber
    from cputune.report.diagnosis import document, markdown, print_text

    scrub = Scrubber.of(host)
    if form == "json":
        said = document(diagnosis)
        said["host"] = scrub.document(said["host"])
        for finding in said["findings"]:
            finding["evidence"] = scrub.text(finding["evidence"])
        return json_text(said, encoding=sys.stdout.encoding)
    if form == "markdown":
        return scrub.text(markdown(diagnosis, machine=machine))
    import io

    buffer = io.StringIO()
    print_text(diagnosis, console(buffer), machine=machine, stories=stories)
    return buffer.getvalue()


def _put(text: str, output: str, force: bool) -> None:
    if output == "-":
        sys.stdout.write(text)
        return
    from cputune.host import write_atomically

    write_atomically(Path(output), text, force=force)
    tell(f"wrote {output}")
