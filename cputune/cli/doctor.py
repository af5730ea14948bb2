"""``cputune doctor``: says what is wrong with this machine for training, and how to fix it."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cputune.cli import completing, help_groups
from cputune.cli.inputs import (
    HOST_SECONDS,
    SLURM,
    choose_python,
    chosen_hosts,
    host_options,
    python_option,
)
from cputune.cli.option_defaults import ConfiguredCommand, json_option
from cputune.cli.output import console, print_json, print_line, verbosity
from cputune.doctor import Check, Diagnosis, Finding, Severity, by_severity
from cputune.doctor.registry import all_checks
from cputune.errors import CannotError, UsageError
from cputune.host import Interpreter, LiveHost, RecordedHost, read_document, this_interpreter
from cputune.host.probing import probe
from cputune.library.examine import look_at

if TYPE_CHECKING:
    from cputune.doctor.hosts import HostsDiagnosis
    from cputune.host import Host
    from cputune.host.facts import HostFacts
    from cputune.launch.launch import Launch
    from cputune.report.next_step import Examined
    from cputune.report.writing import Block

_SEVERITIES = tuple(severity.value for severity in Severity)


_EXCLUDES = {
    # an option: the options that cannot be combined with it
    "json": ("record", "explain"),
    "markdown": ("json", "record", "explain", "picture", "print_fix"),
    "picture": ("json", "record", "explain", "stack", "check_file", "hosts", "launch_words"),
    "explain": ("record", "stack", "check_file"),
    "root": ("deep", "python", "hosts"),
    "record": ("stack", "check_file", "hosts"),
    "stack": ("deep", "python", "hosts"),
    "deep": ("hosts", "hostfile"),
    "check_file": ("deep", "hosts"),
    "print_fix": ("json", "record", "explain", "hosts", "only", "ignore"),
    "launch_words": ("record", "stack", "check_file", "print_fix"),
    "recipe": ("launch_words", "record", "explain", "stack", "check_file", "symptom", "hosts"),
    "symptom": ("launch_words", "record", "explain", "check_file", "deep", "hosts", "hostfile"),
    "pid": (
        "root",
        "record",
        "explain",
        "stack",
        "check_file",
        "symptom",
        "recipe",
        "deep",
        "launch_words",
        "picture",
        "hosts",
        "hostfile",
    ),
}
# Options that examine only this machine, even inside an allocation of several.
_ONE_MACHINE = (
    "root",
    "pid",
    "deep",
    "record",
    "stack",
    "check_file",
    "launch_words",
    "picture",
    "symptom",
    "recipe",
)


@click.command(
    name="doctor",
    cls=ConfiguredCommand,
    groups=help_groups.DOCTOR,
    usual=help_groups.USUAL_DOCTOR,
    more="Say why each finding matters",
)
@json_option
@click.option(
    "--explain",
    is_flag=False,
    flag_value="",
    metavar="[CODE]",
    help="Explain a finding, with its sources; without CODE list all checks.",
    shell_complete=completing.codes,
)
@click.option(
    "--only",
    multiple=True,
    metavar="CODE|SEVERITY,…",
    help="Only show these findings.",
    shell_complete=completing.codes_and_severities,
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="CODE,…",
    help="Hide these findings.",
    shell_complete=completing.several_codes,
)
@click.option(
    "--fail-on",
    type=click.Choice([*_SEVERITIES, "never"]),
    default="error",
    show_default=True,
    help="Exit with 1 for findings of this severity or worse.",
)
@click.option(
    "--root",
    metavar="DIR",
    help="Examine a recorded machine (DIR/proc, DIR/sys).",
    shell_complete=completing.folders,
)
@click.option(
    "--record",
    metavar="DIR",
    help="Record this machine for --root, without names.",
    shell_complete=completing.folders,
)
@click.option("--markdown", is_flag=True, help="Print Markdown, without names, for an issue.")
@click.option("--picture", is_flag=True, help="Draw its sockets, NUMA nodes and cores, as SVG.")
@python_option
@click.option(
    "--deep", is_flag=True, help="Also start short processes that import the stack and measure."
)
@click.option("--stack", metavar="torch=2.6.0,…", help="Check versions that are not installed.")
@host_options
@click.option(
    "--check-file",
    metavar="FILE",
    help="Check a launch script, job, manifest, Dockerfile or requirements file.",
    shell_complete=completing.files,
)
@click.option("--print-fix", is_flag=True, help="Print the fix of --check-file as a diff.")
@click.option(
    "--symptom",
    metavar="TEXT|FILE|-",
    help="Explain an error: its text, or a log.",
    shell_complete=completing.files,
)
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    metavar="N",
    help="Examine a running job and its ranks.",
    shell_complete=completing.nothing,
)
@click.option(
    "--recipe",
    metavar="NAME",
    help="Also say whether this recipe fits into memory.",
    shell_complete=completing.recipes,
)
@click.argument(
    "launch_words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[-- LAUNCH...]",
    shell_complete=completing.files,
)
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Find what is wrong with this machine for training, and how to fix it.

    With a launch after --, also check its words, its script and its imports.

    \b
    cputune doctor
    cputune doctor --json | jq .summary
    cputune doctor --explain quota-threads
    cputune doctor --picture > machine.svg
    cputune doctor --stack torch=2.6.0
    cputune doctor --hosts node1,node2
    cputune doctor --check-file train.sh --print-fix | patch -p0
    cputune doctor --recipe bert-base-squad
    cputune doctor --pid 4711
    cputune doctor -- torchrun --nproc-per-node 2 train.py --bf16
    cputune doctor --hosts node1,node2 -- torchrun --nnodes 2 train.py --bf16
    torchrun train.py 2>&1 | cputune doctor --symptom -
    """
    _refuse_what_excludes(options)
    if options["explain"] is not None:
        click.echo(_explained(options["explain"]), nl=False)
        return
    chosen = _chosen(options)
    hosts = chosen_hosts(options, allocation=not any(options[name] for name in _ONE_MACHINE))
    diagnosis: Diagnosis | HostsDiagnosis
    if hosts is not None:
        from cputune.doctor.hosts import look_at_hosts

        host: Host = LiveHost()
        diagnosis = look_at_hosts(
            *hosts,
            seconds=options["host_timeout"],
            python=options["python"],
            on_seen=lambda host: (
                print_line(f"{host.name} has answered") if verbosity() > 0 else None
            ),
            launch=_launch(options, this_interpreter()),
        ).only(chosen)
    else:
        host, launch = _host_and_launch(options)
        if options["record"] is not None:
            from cputune.host.probing.recording import record

            record(host, options["record"])
            print_line(
                f"recorded this machine in {options['record']}; check it before you share it"
            )
            return
        if options["picture"]:
            click.echo(_picture(host), nl=False)
            return
        diagnosis = _look_at(host, launch, options).only(chosen)
    if options["print_fix"]:
        for finding in diagnosis.findings:
            print_line(f"left for you: {finding.evidence} ({finding.title})")
    else:
        _show(diagnosis, options, host)
    if options["fail_on"] != "never" and diagnosis.at_least(Severity(options["fail_on"])):
        ctx.exit(1)
        ctx.exit(1)


def _refuse_what_excludes(options: Mapping[str, Any]) -> None:
    if options["print_fix"] and options["check_file"] is None:
        raise UsageError("--print-fix needs a file", hint="--check-file FILE --print-fix")
    for option, others in _EXCLUDES.items():
        for other in others:
            if options[option] and options[other]:
                problem = f"{_flag(option)} and {_flag(other)} exclude each other"
                raise UsageError(problem, hint=f"remove {_flag(option)}")


def _chosen(options: Mapping[str, Any]) -> Callable[[Finding | Check], bool]:
    only = ignore = frozenset[str]()
    if options["only"] or options["ignore"]:
        codes = tuple(check.code for check in all_checks())
        only, ignore = (
            _split_names(options["only"], (*codes, *_SEVERITIES)),
            _split_names(options["ignore"], codes),
        )

    def chosen(finding: Finding | Check) -> bool:
        wanted = not only or finding.code in only or finding.severity.value in only
        return wanted and finding.code not in ignore

    return chosen


def _host_and_launch(options: Mapping[str, Any]) -> tuple[Host, Launch | None]:
    """The machine to examine, with the Python of the training, and the launch after ``--``."""
    if options["root"] is not None:
        return RecordedHost(options["root"]), _launch(options, this_interpreter())
    python = choose_python(options["python"])
    launch = _launch(options, python)
    if launch is not None and options["python"] is None:
        from cputune.doctor.typed_launch import python_of

        python = choose_python(python_of(launch, LiveHost(python)))
    return LiveHost(python), launch


def _launch(options: Mapping[str, Any], python: Interpreter) -> Launch | None:
    """The launch after ``--``. Raises UsageError if it does not train."""
    if not options["launch_words"]:
        return None
    from cputune.doctor.typed_launch import read_launch

    return read_launch(options["launch_words"], python)


def _picture(host: Host) -> str:
    """The machine as SVG. Raises UsageError if stdout is a terminal."""
    from cputune.report.figures import machine
    from cputune.report.figures.canvas import alone, svg

    if sys.stdout.isatty():
        hint = "cputune doctor --picture > machine.svg"
        raise UsageError("--picture prints SVG, which needs a file", hint=hint)
    topology = probe(host).topology
    if not topology.cores:
        raise CannotError("the cores of this machine are not known", hint="cputune doctor -v")
    return alone(svg(machine(topology), "machine"))


def _split_names(options: tuple[str, ...], choices: tuple[str, ...]) -> frozenset[str]:
    chosen = set()
    for option in options:
        for word in option.split(","):
            if word.strip():
                chosen.add(_checked_name(word.strip(), choices))
    return frozenset(chosen)


def _flag(name: str) -> str:
    if name == "launch_words":
        return "a launch after --"
    return f"--{name.replace('_', '-')}"


def _look_at(host: Host, launch: Launch | None, options: Mapping[str, Any]) -> Diagnosis:
    facts = probe(host)
    if any(options[name] is not None for name in ("stack", "check_file", "symptom")):
        return _look_at_words(facts, host, options)
    if options["pid"] is not None:
        from cputune.doctor.running_job import judge_job

        return Diagnosis(facts=facts, findings=judge_job(options["pid"], facts, host))
    diagnosis = look_at(host, facts, launch, deep=options["deep"])
    if options["recipe"] is None:
        return diagnosis
    from cputune.doctor.files.needs import judge_recipe
    from cputune.plans.workload import Workload

    needs, short = judge_recipe(Workload.from_recipe(options["recipe"]), facts)
    findings = by_severity(diagnosis.findings + tuple(short))
    return replace(diagnosis, findings=findings, recipe=needs)


def _look_at_words(facts: HostFacts, host: Host, options: Mapping[str, Any]) -> Diagnosis:
    from cputune.doctor.checkfile import check_file, fix_text, offered, scripts_not_read
    from cputune.doctor.named_stack import judge_stack, pins_of, stack_facts
    from cputune.doctor.package_index import SECONDS, with_index
    from cputune.doctor.symptoms import judge_symptom
    from cputune.launch.edit import unified
    from cputune.stack.tables import versions_of

    stack, file = options["stack"], options["check_file"]
    judged = facts
    if stack is not None and (file is not None or options["symptom"] is not None):
        judged = stack_facts(stack, facts)
    if file is not None:
        text = _read(file)
        if options["print_fix"]:
            from cputune.verifier.schemas import refused_document

            after, unfixed = fix_text(text, file, judged, host, refused_document)
            click.echo(unified(file, text, after), nl=False)
            return Diagnosis(facts=facts, findings=unfixed)
        findings = check_file(text, file, judged, host)
        from cputune.verifier.schemas import refused_document

        findings = offered(findings, text, file, judged, host, refused_document)
        unread = scripts_not_read(text, file, judged, host)
        return Diagnosis(facts=facts, findings=findings, unread=unread)
    if options["symptom"] is not None:
        findings = by_severity(judge_symptom(_log(options["symptom"]), judged))
        return Diagnosis(facts=facts, findings=findings)
    findings = judge_stack(stack, facts)
    if facts.recorded or stack.strip() == "installed":
        return Diagnosis(facts=facts, findings=findings)
    judged = stack_facts(stack, facts)
    python = None if judged.python == facts.python else judged.python
    if not host.environment().get("PIP_NO_INDEX"):
        print_line(f"asking the package index, at most {SECONDS:.0f} s (not with PIP_NO_INDEX=1)")
    findings = with_index(findings, pins_of(versions_of(judged)), python, host)
    return Diagnosis(facts=facts, findings=findings)


def _read(file: str) -> str:
    try:
        return read_document(file)
    except OSError as error:
        problem = f"cannot read {file}: {error.strerror or error}"
        raise CannotError(problem, hint="--check-file takes a text file") from error


def _log(symptom: str) -> str:
    """An error text: of stdin, of the file with this name, or as typed. Raises CannotError."""
    if symptom == "-":
        return sys.stdin.buffer.read().decode(errors="replace")
    if "\n" in symptom or not os.path.isfile(symptom):
        return symptom
    try:
        return Path(symptom).read_bytes().decode(errors="replace")
    except OSError as error:
        problem = f"cannot read {symptom}: {error.strerror or error}"
        raise CannotError(problem, hint="--symptom takes a log, or an error text") from error


def _show(diagnosis: Diagnosis | HostsDiagnosis, options: Mapping[str, Any], host: Host) -> None:
    """Print the diagnosis as text or as JSON.

    JSON may be shared, so it does not name the machine and its users, unless hosts were named.
    """
    from cputune.host.probing.scrub import Scrubber
    from cputune.report.diagnosis import blocks, document
    from cputune.report.writing import print_blocks

    if not options["json"]:
        examined = _examined(diagnosis, options)
        shown = blocks(diagnosis, examined=examined, unfold=verbosity() > 0)
        if options["markdown"]:
            click.echo(_markdown(shown, host), nl=False)
        else:
            print_blocks(shown, console())
        return
    content = document(diagnosis)
    if isinstance(diagnosis, Diagnosis):
        scrub = Scrubber.of(host)
        content["host"] = scrub.document(content["host"])
        for finding in content["findings"]:
            finding["evidence"] = scrub.text(finding["evidence"])
    else:
        variables = host.environment()
        scrub = Scrubber(home=variables.get("HOME"), user=variables.get("USER"))
        content = {key: scrub.document(value) for key, value in content.items()}
    print_json(content)


def _markdown(shown: Iterable[Block], host: Host) -> str:
    """Markdown without names of machines and people, because it is meant to be shared."""
    from cputune import __version__
    from cputune.host.probing.scrub import Scrubber
    from cputune.report.markdown import markdown

    return Scrubber.of(host).text(markdown(shown, f"cputune doctor, version {__version__}"))


def _examined(diagnosis: Diagnosis | HostsDiagnosis, typed: Mapping[str, Any]) -> Examined:
    from cputune.report.next_step import Examined

    options: list[str] = []
    for name in ("hosts", "hostfile", "ssh", "through", "python", "recipe"):
        if typed[name] is not None:
            options += [_flag(name), typed[name]]
    if typed["host_timeout"] != HOST_SECONDS:
        options += ["--host-timeout", f"{typed['host_timeout']:g}"]
    if not isinstance(diagnosis, Diagnosis) and not (typed["hosts"] or typed["hostfile"]):
        options += ["--hosts", SLURM]
    return Examined(
        file=typed["check_file"],
        stack=typed["stack"],
        symptom=typed["symptom"] is not None,
        root=typed["root"],
        launch=typed["launch_words"],
        pid=typed["pid"],
        options=tuple(options),
    )


def _explained(code: str) -> str:
    """The explanation of a check, or the list of all checks if ``code`` is empty."""
    from cputune.report.diagnosis import check_list, explain

    checks = {check.code: check for check in all_checks()}
    if not code:
        return check_list(tuple(checks.values()))
    return explain(checks[_checked_name(code, tuple(checks))])


def _checked_name(word: str, choices: tuple[str, ...]) -> str:
    """The word. Raises UsageError if it is not in the list."""
    if word not in choices:
        near = difflib.get_close_matches(word, choices, n=1)
        hint = "`cputune doctor --explain` lists the codes"
        if near:
            hint = f"did you mean {near[0]}?"
        raise UsageError(f"there is no check {word!r}", hint=hint)
    return word
