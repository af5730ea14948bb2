"""``cputune doctor``: what is wrong with this machine for training, and how to cure it."""

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
from cputune.cli.given import (
    HOST_SECONDS,
    SLURM,
    choose_python,
    chosen_hosts,
    host_options,
    python_option,
)
from cputune.cli.output import console, print_json, tell, verbosity
from cputune.cli.settings import ConfiguredCommand, json_option
from cputune.doctor import Check, Diagnosis, Finding, Severity, by_severity
from cputune.doctor.registry import all_checks
from cputune.errors import CannotError, UsageError
from cputune.host import LiveHost, RecordedHost, read_document
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
    # an option: the options that make no sense with it
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
        *("root", "record", "explain", "stack", "check_file", "symptom", "recipe", "deep"),
        *("launch_words", "picture", "hosts", "hostfile"),
    ),
}
_ONE_MACHINE = (
    *(
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
    ),
)
"""With these options, look at this machine alone, also inside an allocation of several."""


@click.command(
    name="doctor",
    cls=ConfiguredCommand,
    groups=help_groups.DOCTOR,
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
    help="Read a recorded machine (DIR/proc, DIR/sys).",
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
    help="The cause of an error: its words, or a log.",
    shell_complete=completing.files,
)
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    metavar="N",
    help="Look at a running job and its ranks.",
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
def command(ctx: click.Context, /, **asked: Any) -> None:
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
    _refuse_what_excludes(asked)
    if asked["explain"] is not None:
        click.echo(_explained(asked["explain"]), nl=False)
        return
    chosen = _chosen(asked)
    hosts = chosen_hosts(asked, allocation=not any(asked[name] for name in _ONE_MACHINE))
    found: Diagnosis | HostsDiagnosis
    if hosts is not None:
        from cputune.doctor.hosts import look_at_hosts

        host: Host = LiveHost()
        found = look_at_hosts(
            *hosts,
            seconds=asked["host_timeout"],
            python=asked["python"],
            on_seen=lambda host: tell(f"{host.name} has answered") if verbosity() > 0 else None,
            launch=_launch(asked),
        ).only(chosen)
    else:
        host, launch = _host_and_launch(asked)
        if asked["record"] is not None:
            from cputune.host.probing.recording import record

            record(host, asked["record"])
            tell(f"recorded this machine in {asked['record']}; look at it before you share it")
            return
        if asked["picture"]:
            click.echo(_picture(host), nl=False)
            return
        found = _look_at(host, launch, asked).only(chosen)
    if asked["print_fix"]:
        for left in found.findings:
            tell(f"left for you: {left.evidence} ({left.title})")
    else:
        _show(found, asked, host)
    if asked["fail_on"] != "never" and found.at_least(Severity(asked["fail_on"])):
        ctx.exit(1)


def _refuse_what_excludes(asked: Mapping[str, Any]) -> None:
    """Raise UsageError where options mean nothing beside each other."""
    if asked["print_fix"] and asked["check_file"] is None:
        raise UsageError("--print-fix mends a file", hint="name it: --check-file FILE")
    for option, others in _EXCLUDES.items():
        for other in others:
            if asked[option] and asked[other]:
                said = f"{_typed(option)} and {_typed(other)} exclude each other"
                raise UsageError(said, hint=f"leave {_typed(option)} away")


def _chosen(asked: Mapping[str, Any]) -> Callable[[Finding | Check], bool]:
    """Whether a finding is shown, by ``--only`` and ``--ignore``. Raises UsageError."""
    only = ignore = frozenset[str]()
    if asked["only"] or asked["ignore"]:
        codes = tuple(check.code for check in all_checks())
        only, ignore = _words(asked["only"], (*codes, *_SEVERITIES)), _words(asked["ignore"], codes)

    def chosen(finding: Finding | Check) -> bool:
        wanted = not only or finding.code in only or finding.severity.value in only
        return wanted and finding.code not in ignore

    return chosen


def _host_and_launch(asked: Mapping[str, Any]) -> tuple[Host, Launch | None]:
    """The machine that is looked at, with the Python that trains; and the launch after ``--``."""
    launch = _launch(asked)
    if asked["root"] is not None:
        return RecordedHost(asked["root"]), launch
    choose_python(asked["python"])
    if launch is not None and asked["python"] is None:
        from cputune.doctor.typed_launch import python_of

        choose_python(python_of(launch, LiveHost()))
    return LiveHost(), launch  # the chosen Python decides which packages it shows


def _launch(asked: Mapping[str, Any]) -> Launch | None:
    """The launch after ``--``. Raises UsageError for words that train nothing."""
    if not asked["launch_words"]:
        return None
    from cputune.doctor.typed_launch import read_launch

    return read_launch(asked["launch_words"])


def _picture(host: Host) -> str:
    """The machine as SVG. Raises UsageError where it would be printed on a terminal."""
    from cputune.report.figures import machine
    from cputune.report.figures.canvas import alone, svg

    if sys.stdout.isatty():
        hint = "cputune doctor --picture > machine.svg"
        raise UsageError("a picture is no text for a terminal", hint=hint)
    topology = probe(host).topology
    if not topology.cores:
        raise CannotError("nothing is known of the cores of this machine", hint="cputune doctor -v")
    return alone(svg(machine(topology), "machine"))


def _words(options: tuple[str, ...], choices: tuple[str, ...]) -> frozenset[str]:
    """The words of options that may be repeated, and may hold lists with commas."""
    found = (word.strip() for option in options for word in option.split(","))
    return frozenset(_known(word, choices) for word in found if word)


def _typed(name: str) -> str:
    return "a launch after --" if name == "launch_words" else f"--{name.replace('_', '-')}"


def _look_at(host: Host, launch: Launch | None, asked: Mapping[str, Any]) -> Diagnosis:
    """What is wrong with a machine and a launch on it, or with what is named instead."""
    facts = probe(host)
    if any(asked[name] is not None for name in ("stack", "check_file", "symptom")):
        return _look_at_words(facts, host, asked)
    if asked["pid"] is not None:
        from cputune.doctor.running import judge_job

        return Diagnosis(facts=facts, findings=judge_job(asked["pid"], facts, host))
    diagnosis = look_at(host, facts, launch, deep=asked["deep"])
    if asked["recipe"] is None:
        return diagnosis
    from cputune.doctor.files.needs import judge_recipe
    from cputune.plans.workload import Workload

    needs, short = judge_recipe(Workload.from_recipe(asked["recipe"]), facts)
    found = by_severity((*diagnosis.findings, *short))
    return replace(diagnosis, findings=found, recipe=needs)


def _look_at_words(facts: HostFacts, host: Host, asked: Mapping[str, Any]) -> Diagnosis:
    """What is wrong with a file, a named stack, or what an error says."""
    from cputune.doctor.checkfile import check_file, mended
    from cputune.doctor.named_stack import judge_stack, stack_facts
    from cputune.doctor.symptoms import judge_symptom
    from cputune.launch.edit import unified

    stack, file = asked["stack"], asked["check_file"]
    if file is not None:
        text, judged = _read(file), facts if stack is None else stack_facts(stack, facts)
        if asked["print_fix"]:
            after, left = mended(text, file, judged, host)
            click.echo(unified(file, text, after), nl=False)
            return Diagnosis(facts=facts, findings=left)
        return Diagnosis(facts=facts, findings=check_file(text, file, judged, host))
    if asked["symptom"] is not None:
        judged = facts if stack is None else stack_facts(stack, facts)
        found = by_severity(judge_symptom(_log(asked["symptom"]), judged))
        return Diagnosis(facts=facts, findings=found)
    return Diagnosis(facts=facts, findings=judge_stack(stack, facts))


def _read(file: str) -> str:
    """The text of a file that is judged. Raises CannotError."""
    try:
        return read_document(file)
    except OSError as error:
        said = f"cannot read {file}: {error.strerror or error}"
        raise CannotError(said, hint="--check-file takes a file of text") from error


def _log(words: str) -> str:
    """The words of an error; those of stdin, or of the file of this name. Raises CannotError."""
    if words == "-":
        return sys.stdin.buffer.read().decode(errors="replace")
    if "\n" in words or not os.path.isfile(words):
        return words
    try:
        return Path(words).read_bytes().decode(errors="replace")
    except OSError as error:
        said = f"cannot read {words}: {error.strerror or error}"
        raise CannotError(said, hint="--symptom takes a log, or the words of an error") from error


def _show(diagnosis: Diagnosis | HostsDiagnosis, asked: Mapping[str, Any], host: Host) -> None:
    """Show the diagnosis as text, or as JSON.

    JSON may be shared, so it names neither the machine nor its users; remedies stay complete, since
    they are run. What was seen of several hosts names the hosts: that is what it is for.
    """
    from cputune.host.probing.scrub import Scrubber
    from cputune.report.diagnosis import blocks, document
    from cputune.report.writing import print_blocks

    if not asked["json"]:
        examined = _examined(diagnosis, asked)
        shown = blocks(diagnosis, examined=examined, unfold=verbosity() > 0)
        if asked["markdown"]:
            click.echo(_markdown(shown, host), nl=False)
        else:
            print_blocks(shown, console())
        return
    said = document(diagnosis)
    if isinstance(diagnosis, Diagnosis):
        scrub = Scrubber.of(host)
        said["host"] = scrub.document(said["host"])
        for finding in said["findings"]:
            finding["evidence"] = scrub.text(finding["evidence"])
    else:
        variables = host.environment()
        scrub = Scrubber(home=variables.get("HOME"), user=variables.get("USER"))
        said = {key: scrub.document(value) for key, value in said.items()}
    print_json(said)


def _markdown(shown: Iterable[Block], host: Host) -> str:
    """What is shown as Markdown; it is meant to be shared, so it names no machine and no person."""
    from cputune import __version__
    from cputune.host.probing.scrub import Scrubber
    from cputune.report.markdown import markdown

    return Scrubber.of(host).text(markdown(shown, f"cputune doctor, version {__version__}"))


def _examined(diagnosis: Diagnosis | HostsDiagnosis, asked: Mapping[str, Any]) -> Examined:
    """What was looked at, in the words by which the next command names it."""
    from cputune.report.next_step import Examined

    options: list[str] = []
    for name in ("hosts", "hostfile", "ssh", "through", "python", "recipe"):
        if asked[name] is not None:
            options += [_typed(name), asked[name]]
    if asked["host_timeout"] != HOST_SECONDS:
        options += ["--host-timeout", f"{asked['host_timeout']:g}"]
    if not isinstance(diagnosis, Diagnosis) and not (asked["hosts"] or asked["hostfile"]):
        options += ["--hosts", SLURM]
    return Examined(
        file=asked["check_file"],
        stack=asked["stack"],
        symptom=asked["symptom"] is not None,
        root=asked["root"],
        launch=asked["launch_words"],
        pid=asked["pid"],
        options=tuple(options),
    )


def _explained(code: str) -> str:
    """The story of a check, or the list of all where ``code`` is empty."""
    from cputune.report.diagnosis import check_list, explain

    checks = {check.code: check for check in all_checks()}
    if not code:
        return check_list(tuple(checks.values()))
    return explain(checks[_known(code, tuple(checks))])


def _known(word: str, words: tuple[str, ...]) -> str:
    """The word. Raises UsageError for one that is none of these."""
    if word not in words:
        near = difflib.get_close_matches(word, words, n=1)
        hint = f"did you mean {near[0]}?" if near else "`cputune doctor --explain` lists the codes"
        raise UsageError(f"no check is called {word!r}", hint=hint)
    return word
