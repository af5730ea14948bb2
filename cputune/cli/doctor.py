"""``cputune doctor``: what is wrong with this machine for training, and how to mend it.

``cputune`` alone tells it in two lines, and the next step for this machine and folder.
"""

from __future__ import annotations

import difflib
import io
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cputune.cli.given import (
    DEFAULT_RESULT,
    allocated,
    choose_python,
    chosen_hosts,
    facts_of,
    host_options,
    python_option,
)
from cputune.cli.output import console, json_text, put, tell, verbosity
from cputune.cli.settings import ConfiguredCommand, force_option, json_option, option
from cputune.doctor import Check, Diagnosis, Finding, Severity, by_severity, diagnose
from cputune.doctor.finding import FoundOn
from cputune.errors import CannotError, CputuneError, UsageError
from cputune.host import LiveHost, read_document
from cputune.host.interpreter import has_module, install_tuning
from cputune.text import visible

if TYPE_CHECKING:
    from cputune.doctor.files.shell import TrainingCommand
    from cputune.doctor.hosts import HostsDiagnosis
    from cputune.host import Host

_SEVERITIES = tuple(severity.value for severity in Severity)
_LIVE_ONLY = {
    # an option that judges something else than this machine as it is: the options it excludes
    "root": ("deep", "python", "hosts", "salloc"),
    "record": ("hosts", "salloc"),
    "stack": ("deep", "everything", "python", "hosts", "salloc"),
    "check_file": ("deep", "everything", "hosts", "salloc"),
}
_WHY_NOT = {
    "deep": "--deep looks at the live machine",
    "everything": "--all tells what is fine with a machine",
    "python": "--python names an interpreter of this machine",
    "hosts": "--hosts looks at live machines",
    "salloc": "--salloc looks at live machines",
}


@click.command(name="doctor", cls=ConfiguredCommand)
@json_option
@option("--markdown", "as_markdown", is_flag=True, help="For pasting into an issue.")
@option("--print-fix", is_flag=True, help="The cures as one shell script.")
@option(
    "--explain",
    is_flag=False,
    flag_value="",
    metavar="[CODE]",
    help="Explain a finding, with its sources; without CODE list all checks.",
)
@option(
    "--all",
    "everything",
    is_flag=True,
    folder=True,
    help="Also list what was looked for and is fine.",
)
@option("--only", multiple=True, folder=True, metavar="CODE|SEVERITY,…", help="Show these alone.")
@option("--ignore", multiple=True, folder=True, metavar="CODE,…", help="Leave these out.")
@option(
    "--fail-on",
    type=click.Choice([*_SEVERITIES, "never"]),
    default="error",
    show_default=True,
    folder=True,
    help="End with 1 where a finding is as bad as this.",
)
@option("--root", metavar="DIR", help="Look at a recorded machine (DIR/proc, DIR/sys).")
@option(
    "--record",
    metavar="DIR",
    help="Record this machine for --root, without names.",
    why_not="it names a folder that is written",
)
@python_option
@option(
    "--deep",
    is_flag=True,
    help="Also start short processes that import the stack and measure.",
    why_not="it starts processes",
)
@option("--stack", metavar="torch=2.6.0,…", help="Judge versions that are not installed.")
@host_options
@option(
    "--launch", metavar="PATH", help="With --hosts: files that must be the same on all of them."
)
@option("--check-file", metavar="FILE", help="Judge an accelerate YAML, command, job, Dockerfile.")
@option(
    "-o",
    "--output",
    metavar="FILE",
    default="-",
    help="Write there; - is stdout.",
    why_not="it names a file that is written",
)
@force_option
@click.argument("launch_words", nargs=-1, type=click.UNPROCESSED, metavar="[-- LAUNCH...]")
@click.pass_context
def command(ctx: click.Context, /, as_json: bool, only: tuple[str, ...], **asked: Any) -> None:
    """Say what is wrong with this machine for training, and how to mend it.

    With a launch after -- also what is wrong with that: its words, its script, what it imports.

    \b
    cputune doctor
    cputune doctor --all
    cputune doctor --json | jq .summary
    cputune doctor --explain quota-threads
    cputune doctor --stack torch=2.6.0
    cputune doctor --hosts node1,node2 --launch launch/
    cputune doctor -- torchrun --nproc-per-node 2 train.py --bf16
    """
    forms = {"json": as_json, "markdown": asked["as_markdown"], "fix": asked["print_fix"]}
    form = next((form for form, chosen in forms.items() if chosen), "text")
    output, force, fail_on = asked["output"], asked["force"], asked["fail_on"]
    if sum(forms.values()) > 1:
        raise UsageError("--json, --markdown and --print-fix exclude each other")
    explain, record = asked["explain"], asked["record"]
    stack, check_file = asked["stack"], asked["check_file"]
    if sum(given is not None for given in (explain, record, stack or check_file)) > 1:
        raise UsageError("--explain, --record and --stack or --check-file exclude each other")
    _refuse_what_needs_the_machine(asked)
    if explain is not None:
        put(_explained(explain, as_json=as_json), output, force=force)
        return
    words = asked["launch_words"]
    launch = _launch_of(words, asked) if words else None
    chosen = _chooser(_words(only, (*codes(), *_SEVERITIES)), _words(asked["ignore"], codes()))
    alone = launch is not None or any(asked[name] is not None for name in _LIVE_ONLY)
    allocated(asked, asked["host_timeout"])
    ways = {name: asked[name] for name in ("hosts", "hostfile", "through", "ssh", "host_timeout")}
    hosts = chosen_hosts(**ways, allocation=not alone)
    if hosts is not None and alone:
        raise UsageError(
            f"{_WHY_NOT['hosts']}", hint="leave --root, --record, --stack and --check-file away"
        )
    if hosts is not None:
        if asked["everything"] or form == "fix":
            raise UsageError(
                "--all and --print-fix are about one machine", hint="--hosts none, on that machine"
            )
        from cputune.doctor.hosts import look_at_hosts

        seen = look_at_hosts(
            hosts.nodes,
            hosts.reach,
            seconds=hosts.seconds,
            python=asked["python"],
            launch=asked["launch"],
            deep=asked["deep"],
            on_seen=lambda one: tell(f"{one.name} has answered") if verbosity() > 0 else None,
        ).only(chosen)
        _show(seen, form, LiveHost(), output, force=force)
        _end(ctx, seen, fail_on)
        return
    if asked["launch"] is not None:
        raise UsageError("--launch is compared between hosts", hint="name them: --hosts a,b")
    host = _host(asked["root"], asked["python"] or _python_of(launch))
    if record is not None:
        if form != "text":
            raise UsageError("--record writes a directory, and no document")
        from cputune.probing.recording import record as keep

        keep(host, record)
        tell(f"recorded this machine in {record}; look at it before you share it")
        return
    diagnosis = _diagnose(
        host, deep=asked["deep"], stack=stack, check_file=check_file, launch=launch
    )
    if host.live and host.executable != sys.executable:
        diagnosis = diagnosis.for_python(host.executable)
    diagnosis = diagnosis.only(chosen)
    if asked["everything"]:
        diagnosis = _with_what_is_fine(diagnosis, chosen)
    about_machine = stack is None and check_file is None
    if form == "fix":
        from cputune.report.fixes import fix_script

        again = chosen if about_machine else lambda finding: False
        put(fix_script(diagnosis, chosen=again), output, force=force)
    else:
        _show(diagnosis, form, host, output, force=force, machine=about_machine)
    _end(ctx, diagnosis, fail_on)


def _refuse_what_needs_the_machine(asked: dict[str, Any]) -> None:
    """Raise UsageError where an option is about the live machine, and another is judged."""
    for name, others in _LIVE_ONLY.items():
        for other in others:
            if asked[name] is not None and asked[other]:
                away = name.replace("_", "-")
                raise UsageError(_WHY_NOT[other], hint=f"leave --{away} away")


def _end(ctx: click.Context, diagnosis: FoundOn, fail_on: str) -> None:
    if fail_on != "never" and diagnosis.at_least(Severity(fail_on)):
        ctx.exit(1)


def _host(root: str | None, python: str | None) -> Host:
    from cputune.host import RecordedHost

    if root is not None:
        return RecordedHost(root)
    choose_python(python)
    return LiveHost()


def _launch_of(words: tuple[str, ...], asked: dict[str, Any]) -> TrainingCommand:
    from cputune.doctor.typed_launch import read_launch

    for name in ("root", "record", "stack", "check_file", "hosts", "hostfile"):
        if asked[name] is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} does not go with a launch after --",
                hint="a launch is judged on this machine, as it would be started",
            )
    return read_launch(words)


def _python_of(launch: TrainingCommand | None) -> str | None:
    """The Python that the launch would run, where it is another than the one that trains anyway."""
    from cputune.doctor.typed_launch import python_of

    if launch is None:
        return None
    choose_python(None)
    return python_of(launch, LiveHost())


def _diagnose(
    host: Host,
    *,
    deep: bool,
    stack: str | None,
    check_file: str | None,
    launch: TrainingCommand | None,
) -> Diagnosis:
    from cputune.probing import probe

    facts = probe(host)
    if launch is not None:
        from cputune.doctor.typed_launch import facts_of

        facts = facts_of(launch, facts, host)
    if check_file is not None:
        from cputune.doctor.checkfile import check_file as judge_file
        from cputune.doctor.named_stack import stack_facts

        judged = facts if stack is None else stack_facts(stack, facts)
        name = "stdin" if check_file == "-" else check_file
        return Diagnosis(facts=facts, findings=judge_file(text_of(check_file), name, judged, host))
    if stack is not None:
        from cputune.doctor.named_stack import judge_stack

        return Diagnosis(facts=facts, findings=judge_stack(stack, facts))
    from cputune.doctor.checkfile import configured_findings

    found = (*diagnose(facts).findings, *configured_findings(facts, host))
    if launch is not None:
        from cputune.doctor.typed_launch import judge_typed

        found += judge_typed(launch, facts, host)
    if deep:
        from cputune.doctor.deep import deep_findings

        found += deep_findings(facts, host)
    return Diagnosis(facts=facts, findings=by_severity(found))


def _with_what_is_fine(
    diagnosis: Diagnosis, chosen: Callable[[Finding | Check], bool]
) -> Diagnosis:
    """The same with every check of the facts, those of files and children left out."""
    from cputune.doctor.registry import looked_at

    found = {finding.code for finding in (*diagnosis.findings, *diagnosis.hidden)}
    looked = looked_at(diagnosis.facts, found)
    return replace(diagnosis, looked=tuple(row for row in looked if chosen(row.check)))


MOST_CHARACTERS = 16 << 20
"""Of what is piped into ``--check-file -``; a file may have as many bytes."""


def text_of(path: str) -> str:
    """The text of a file, or of standard input. Raises CannotError."""
    try:
        return sys.stdin.read(MOST_CHARACTERS) if path == "-" else read_document(path)
    except OSError as error:
        raise CannotError(
            f"cannot read {path}: {error.strerror or error}", hint="give a file, or - for stdin"
        ) from error


def _words(options: tuple[str, ...], choices: tuple[str, ...]) -> frozenset[str]:
    """The words of options that may be given several times, and hold lists with commas."""
    words = [word.strip() for option in options for word in option.split(",") if word.strip()]
    for word in words:
        _known(word, choices)
    return frozenset(words)


def _chooser(only: frozenset[str], ignore: frozenset[str]) -> Callable[[Finding | Check], bool]:
    def chosen(finding: Finding | Check) -> bool:
        wanted = not only or finding.code in only or finding.severity.value in only
        return wanted and finding.code not in ignore

    return chosen


def _show(
    diagnosis: Diagnosis | HostsDiagnosis,
    form: str,
    host: Host,
    output: str,
    *,
    force: bool,
    machine: bool = True,
) -> None:
    """As ``json``, ``markdown`` or ``text``, on stdout or in a file.

    What may leave the machine names neither it nor its users; cures stay as they are run. What
    was seen of several hosts names those, since that is what it is for.
    """
    from cputune.probing.scrub import Scrubber
    from cputune.report.diagnosis import blocks, document
    from cputune.report.writing import markdown, print_blocks

    shown = partial(blocks, diagnosis, machine=machine)
    if form == "text":
        stream = sys.stdout if output == "-" else io.StringIO()
        print_blocks(shown(unfold=verbosity() > 0), console(stream))
        if isinstance(stream, io.StringIO):
            put(stream.getvalue(), output, force=force)
        return
    if isinstance(diagnosis, Diagnosis):
        scrub = Scrubber.of(host)
    else:
        variables = host.environment()
        scrub = Scrubber(home=variables.get("HOME"), user=variables.get("USER"))
    if form == "markdown":
        put(scrub.text(markdown("cputune doctor", shown(unfold=True))), output, force=force)
        return
    said = document(diagnosis)
    if isinstance(diagnosis, Diagnosis):
        said["host"] = scrub.document(said["host"])
        for finding in said["findings"]:
            finding["evidence"] = scrub.text(finding["evidence"])
    else:
        said = {key: scrub.document(value) for key, value in said.items()}
    text = json_text(said, encoding=sys.stdout.encoding)
    put(text, output, force=force)


def _explained(code: str, *, as_json: bool) -> str:
    """The story of a check, or the list of all where ``code`` is empty."""
    from cputune.doctor.registry import all_checks
    from cputune.report.diagnosis import check_document, check_list, explain

    if not code:
        checks = all_checks()
        documents = {"schema": "cputune.checks/1", "checks": [check_document(c) for c in checks]}
        return json_text(documents) if as_json else check_list(checks) + _pages()
    _known(code, codes())
    check = next(check for check in all_checks() if check.code == code)
    return json_text(check_document(check)) if as_json else explain(check)


def _pages() -> str:
    """Where the pages of docs/ lie: inside the wheel, or beside the package in a checkout."""
    package = Path(str(resources.files("cputune")))
    places = (package / "docs", package.parent / "docs")
    found = next((place for place in places if (place / "checks.md").is_file()), None)
    return f"All of them on one page: {found / 'checks.md'}\n" if found else ""


def codes() -> tuple[str, ...]:
    """The codes of all checks."""
    from cputune.doctor.registry import all_checks

    return tuple(check.code for check in all_checks())


def _known(word: str, words: tuple[str, ...]) -> None:
    """Raise UsageError for a word that is none of these."""
    if word in words:
        return
    near = difflib.get_close_matches(word, words, n=3)
    hint = (
        "did you mean " + " or ".join(near) if near else "cputune doctor --explain lists the codes"
    )
    raise UsageError(f"no check is called {word!r}", hint=hint)


_TRAINS = ("Trainer(", "accelerate", "torch.optim", "optimizer.step", "TrainingArguments")
_MOST_LOOKED_AT = 50
"""Python files of a folder; a larger folder is no training project."""
LEAST_BYTES = 1 << 20


def look() -> None:
    """Say what is seen and what to do next; whatever is wrong is no error of this command."""
    from cputune.doctor import diagnose
    from cputune.facts import HostFacts
    from cputune.report.diagnosis import verdict
    from cputune.report.machine import machine_lines

    choose_python(None)
    out = console()
    facts: HostFacts | None = None
    try:
        facts = facts_of()
        diagnosis = diagnose(facts)
    except CputuneError as error:
        out.print(visible(f"This machine cannot be looked at: {error}"))
    else:
        rows = dict(machine_lines(facts))
        seen = ", ".join(filter(None, (rows.get("CPU"), rows.get("cores", "").split(", ")[0])))
        out.print(visible(f"This machine: {seen}."))
        out.print(visible(f"For training: {verdict(diagnosis)}. More: cputune doctor"))
    why, command = next_step(Path())
    out.print(visible(f"Next, {why}:"))
    out.print(f"  {visible(command)}", style="bold", soft_wrap=True)
    out.print("All commands: cputune --help", style="dim")


def next_step(folder: Path) -> tuple[str, str]:
    """(why, command): what brings somebody on who stands in this folder."""
    if (folder / DEFAULT_RESULT).is_file():
        return "a result lies here, so look at it", "cputune show"
    stack = not has_module("torch")
    missing = ["torch"] * stack + ["optuna"] * (find_spec("optuna") is None)
    if missing:
        return f"tuning needs {' and '.join(missing)}", install_tuning(stack=stack)
    script = _training_script(folder)
    if script is not None:
        return (
            f"{script} looks like a training script, so tune it with its usual arguments",
            f"cputune tune --max-time 20m -- {shlex.quote(script)}",
        )
    return "no training script is seen here, so tune a small model", "cputune tune --max-time 10m"


def _training_script(folder: Path) -> str | None:
    """The Python file here that most looks like one that trains."""
    found: list[tuple[int, str]] = []
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".py")
    except OSError:
        return None
    for path in files[:_MOST_LOOKED_AT]:
        try:
            text = read_document(path, most_bytes=LEAST_BYTES)
        except OSError:
            continue
        signs = sum(sign in text for sign in _TRAINS)
        if signs:
            found.append((-signs - ("__main__" in text), path.name))
    return min(found)[1] if found else None
