"""Launch scripts: read by bash and shellcheck, run by their launchers for a few steps.

Slurm is first asked whether a batch script would run (``sbatch --test-only``, which submits
nothing). The job itself is submitted only on request: it uses the cluster's time.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cputune.emitters import EmittedFile
from cputune.emitters.imported import digest, text_of
from cputune.emitters.training_claims import BESIDE
from cputune.errors import CputuneError
from cputune.host import Command, Completed, Host, read_document
from cputune.host.files import entries, exists, real_path
from cputune.host.remote.ask import ask_each
from cputune.host.remote.named import Node
from cputune.host.remote.reach import Ssh
from cputune.inside import SCRATCH_VARIABLE, SOCKET_VARIABLE
from cputune.launch.shell import assignments, paths_below
from cputune.launch.target import slurm_header, target_of
from cputune.ranks.engines import HERE, RELAYED, FromHere, Held, Launch, batch_job, is_here
from cputune.ranks.job import Begin, Launched, observe
from cputune.ranks.supervisor import WorkFolder
from cputune.ranks.supervisor_main import RankCommand
from cputune.records.steps import TrialError
from cputune.text.plain import count
from cputune.verifier.checks import (
    CHANGES_A_PLAN,
    SLOWEST_RATIO,
    outcomes,
    throughput,
    throughput_check,
)
from cputune.verifier.folder import folder_check
from cputune.verifier.records import (
    FAILED,
    Answer,
    Artefact,
    Evidence,
    Expected,
    Outcome,
    judged,
    not_checked,
    not_installed,
)

ASK_SECONDS = 60.0  # for a program that reads a file
NO_ANSWER = f"{{}} gave no answer in {ASK_SECONDS:g} s"
REACH_SECONDS = 30.0  # for a host to answer
# (check, program, its options, what installs it) of the readers of a script.
READERS = (
    ("syntax", "bash", ("-n",), "apt-get install bash"),
    (
        "lint",
        "shellcheck",
        # SC1090 and SC1091: a file that is sourced is known only where the script runs.
        ("--norc", "--shell=bash", "--format=gcc", "--severity=warning", "-eSC1090,SC1091"),
        "pip install 'cputune[verify]'",
    ),
)


def read_script(artefact: Artefact, expected: Expected, host: Host) -> Answer:
    """What bash and shellcheck report of a script: no notes on style, because ``emit --like`` keeps
    lines of the user.
    """
    for name, program, options, install in READERS:
        program_path = host.which(program) or _beside_python(host, program)
        if program_path is None:
            yield not_installed(name, program, install)
            continue
        done = _ask((program_path, *options, str(real_path(artefact.path))), host)
        if done.returncode is None:
            yield not_checked(name, NO_ANSWER.format(program))
            continue
        lines = _lines_of(done)
        if done.returncode != 0 and not lines:
            lines = [f"ended with {done.returncode}"]
        complaints = [Evidence(what=program, seen=line) for line in lines[:20]]
        yield judged(name, program, complaints, "no complaints")
    yield from folder_check(artefact, expected.folder)


def _lines_of(done: Completed) -> list[str]:
    """What a program has printed, without empty lines."""
    return [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]


def _beside_python(host: Host, program: str) -> str | None:
    """A program that pip installed next to the interpreter, if that is not on PATH."""
    path = Path(sys.prefix) / "bin" / program
    if host.exists(str(path)):
        return str(path)
    return None


def _ask(argv: tuple[str, ...], host: Host) -> Completed:
    with contextlib.suppress(OSError):
        return host.run(Command(argv=argv, timeout_seconds=ASK_SECONDS))
    return Completed(returncode=127, stdout="", stderr=f"{argv[0]} did not start", seconds=0.0)


def run_script(artefact: Artefact, expected: Expected, host: Host) -> Answer:
    """Run the script as it is, and compare what its ranks saw with the plan.

    The script itself reports what it needs and does not find.
    """
    environment = host.environment()
    python, missing = interpreter(artefact, environment, host)
    yield from files_check(artefact, expected, host)
    yield from variables_of(artefact, expected)
    if not expected.run or any(missing_beside(artefact)):
        yield not_run(is_requested=not expected.run)
        return
    if expected.plan.nodes > 1:
        yield from over_hosts(artefact, expected, python, environment)
    else:
        command = Command(argv=("bash", str(real_path(artefact.path))), environment=environment)
        yield from measured([command], expected, artefact.format, interpreter=python)
    yield from missing


def files_check(artefact: Artefact, expected: Expected, host: Host) -> Answer:
    """Whether the script, and each file that the command names, is there and is what it was."""
    if expected.trained is not None:
        promised = expected.trained.files
    else:
        promised = {}
    folder = f"{real_path(artefact.path.parent)}/"
    rows, missing = [], list(missing_beside(artefact))
    for path, wanted in promised.items():
        text = text_of(path.replace(BESIDE, folder), host)
        if text is not None:
            name = path.removeprefix(BESIDE)
            rows.append(Evidence(what=name, expected=wanted, seen=digest(text)))
    if missing:
        absent = [Evidence(what=name, expected="a file", seen="missing") for name in missing]
        wrong = f"{', '.join(missing)}: missing beside {artefact.path.name}"
        yield judged("files", None, absent, "", [*absent, *rows], wrong=wrong)
        return
    changed = [row for row in rows if row.seen != row.expected]
    summary = f"{', '.join(row.what for row in changed)}: changed since it was emitted"
    if rows:
        good = f"{count(len(rows), 'file')}, as emitted"
        yield judged("files", None, changed, good, wrong=summary)


def missing_beside(artefact: Artefact) -> Iterator[str]:
    """The files that a script names beside itself, and that are not there."""
    for name in dict.fromkeys(paths_below(artefact.text, "here")):
        if not exists(artefact.path.parent / name):
            yield name


def variables_of(artefact: Artefact, expected: Expected) -> Iterator[Outcome]:
    """What the script sets of the variables that change a plan: nothing but what was promised."""
    promised = expected.environment
    if promised is None:
        return
    rows = list[Evidence]()
    for name, value in assignments(artefact.text):
        if not (CHANGES_A_PLAN.fullmatch(name) or name in ("LD_PRELOAD", *promised)):
            continue
        wanted = promised.get(name)
        unknown = "$" in value and wanted is not None
        if value != wanted and not unknown and name not in _LAUNCHERS_OWN:
            if wanted is None:
                expect = f"no {name}"
            else:
                expect = f"{name}={wanted}"
            rows.append(Evidence(what=name, expected=expect, seen=f"{name}={value}"))
    good = "it sets no variable that is not the plan's"
    difference = None
    if rows:
        difference = f"{rows[0].seen}, the plan has {rows[0].expected}"
    yield judged("variables", "the script", rows, good, wrong=difference)


_LAUNCHERS_OWN = ("I_MPI_PIN_RESPECT_CPUSET",)


def over_hosts(
    artefact: Artefact, expected: Expected, python: str | None, environment: Mapping[str, str]
) -> Answer:
    """One launch on the hosts that it names, as a trial is run there; or why it cannot be.

    The engine of a trial copies the launch's files, and what makes its ranks report.
    """
    plan, consumer = expected.plan, artefact.format
    nodes, reach = tuple(Node(name=host) for host in expected.hosts), Ssh(words=expected.ssh)
    if len(nodes) != plan.nodes:
        reason = f"it starts ranks on {plan.nodes} nodes, but does not name the hosts"
        yield not_checked(
            "launch", reason, "emit it with their names: cputune emit --hosts a,b", consumer
        )
        return
    try:
        for answer in ask_each(nodes, reach, "print('{}')", lambda _: {}, REACH_SECONDS):
            if answer.unreachable is not None and not is_here(answer.node.name):
                raise answer.unreachable
    except CputuneError as error:
        yield not_checked("launch", str(error), error.hint, consumer)
        return
    engine = Held(reach) if artefact.format == "torchrun" else FromHere(reach)
    with WorkFolder() as work:
        launch = Launch(
            plan=plan,
            nodes=nodes,
            files=_with_companions(artefact),
            variables={},
            environment=environment,
            folder=work.path / "launch",
        )

        def begin(reporting: Mapping[str, str]) -> Sequence[RankCommand]:
            socket = reporting[SOCKET_VARIABLE]
            variables = {
                **reporting,
                SCRATCH_VARIABLE: f"{HERE}/scratch",
                SOCKET_VARIABLE: RELAYED,
            }
            return engine.start(replace(launch, variables=variables, report_socket=socket))

        try:
            yield from measured(begin, expected, consumer, interpreter=python)
        finally:
            engine.end(launch)


COMPANIONS = re.compile(r"(rank|apply_plan|carry|train)\.py|.*\.(json|yaml)|hosts\..*")


def _with_companions(artefact: Artefact) -> tuple[EmittedFile, ...]:
    """The script, and the files next to it that a launch may need."""
    beside = [path for path in entries(artefact.path.parent) if COMPANIONS.fullmatch(path.name)]
    others = (EmittedFile(name=path.name, text=read_document(path)) for path in sorted(beside))
    return (EmittedFile(name=artefact.path.name, text=artefact.text, executable=True), *others)


def measured(
    commands: Begin,
    expected: Expected,
    consumer: str,
    *,
    interpreter: str | None,
    dealt_out: bool = False,
    logs: Sequence[Path] = (),
) -> Answer:
    """Start a launch, and check what its ranks saw and how fast they were.

    One that is slower than the tuned trial is started once more, and the faster run counts: other
    processes can only slow it down.
    """

    def start() -> Launched:
        return observe(
            commands,
            ranks=expected.plan.world_size,
            steps=expected.steps,
            timeout_seconds=expected.timeout_seconds,
            logs=logs,
            show=expected.environment or (),
        )

    tuned, ratio = expected.samples_per_second, None
    try:
        launched = start()
        if tuned is not None and launched.enough:
            ratio = throughput(launched.steps, tuned)
            if ratio is not None and ratio.ratio < SLOWEST_RATIO:
                again = start()
                second = None
                if again.enough:
                    second = throughput(again.steps, tuned)
                ratio = max((ratio, second or ratio), key=lambda speedup: speedup.ratio)
    except (OSError, TrialError) as error:
        message = f"it cannot be started: {error}"
        yield Outcome(name="launch", state=FAILED, consumer=consumer, summary=message)
        return
    yield from outcomes(launched, expected, consumer, interpreter, dealt_out=dealt_out)
    if launched.enough:
        yield throughput_check(ratio, consumer)
    if ratio is not None:
        yield ratio


def interpreter(
    artefact: Artefact, environment: Mapping[str, str], host: Host
) -> tuple[str | None, tuple[Outcome, ...]]:
    """The interpreter for a script: PYTHON, else the one of the tuning.

    None if any will do. If the one of the tuning is missing here, the launch differs from the
    measured one, and the outcome says so.
    """
    # An emitted script keeps the interpreter of the tuning in a variable.
    values = (value for name, value in assignments(artefact.text) if name == "tuned")
    tuned = next(values, None)
    chosen = environment.get("PYTHON", tuned)
    python = chosen and host.which(chosen)
    if python or chosen is None:
        return python, ()
    reason = f"the plan was tuned with {chosen}, which is not here"
    return None, (not_checked("interpreter", reason, "set PYTHON to the interpreter that trains"),)


def not_run(*, is_requested: bool = True) -> Outcome:
    """The launch that was not run, because you chose that or because files are missing."""
    without = "cputune verify without --no-run"
    if not is_requested:
        reason = "it was not run: files are missing next to it"
        return not_checked("launch", reason, "copy all files that were emitted together")
    return not_checked("launch", "it was not run, as requested", without, left_out=True)


# A time limit below this ends a job before its model is loaded.
LEAST_SECONDS = 600
# The least memory of a node: torch alone takes some hundred MiB in each rank.
LEAST_BYTES = 2**30


def header_check(artefact: Artefact, expected: Expected) -> Outcome:
    """What the ``#SBATCH`` header asks for, compared with the plan. No cluster is needed."""
    plan, job = expected.plan, target_of(artefact.text)
    cpus = plan.threads_per_process + plan.ccl_workers
    rows = [
        ("--nodes", job.nodes or 1, plan.nodes, job.nodes in (None, plan.nodes)),
        (
            "--ntasks-per-node",
            job.tasks_per_node or 1,
            plan.processes_per_node,
            (job.tasks_per_node or 1) == plan.processes_per_node,
        ),
        (
            "--cpus-per-task",
            job.cpus_per_task or 1,
            cpus,
            (job.cpus_per_task or 1) >= cpus,
        ),
    ]
    wrong = list[Evidence]()
    for name, shown, wanted, good in rows:
        if not good:
            wrong.append(Evidence(what=name, seen=str(shown), expected=str(wanted)))
    wrong += _limits(slurm_header(artefact.text))
    difference = None
    if wrong:
        difference = f"{wrong[0].what}={wrong[0].seen}, expected {wrong[0].expected}"
    return judged("header", "#SBATCH", wrong, "it asks for what the plan needs", wrong=difference)


def _limits(header: Sequence[tuple[str, str]]) -> Iterator[Evidence]:
    """Limits of a job under which no training ends, and memory that is asked for twice."""
    given = dict(header)
    for name in ("oversubscribe", "s"):
        if name in given:
            expected = "CPUs that no other job uses"
            yield Evidence(what=f"--{name}", seen="given", expected=expected)
    memory = [name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in given]
    if len(memory) > 1:
        yield Evidence(what=f"--{memory[1]}", seen=given[memory[1]], expected=f"only --{memory[0]}")
    for name in ("time", "t"):
        seconds = _seconds(given.get(name, ""))
        if seconds is not None and 0 < seconds < LEAST_SECONDS:
            expected = f"{LEAST_SECONDS // 60} minutes or more"
            yield Evidence(what=f"--{name}", seen=given[name], expected=expected)
    amount = re.fullmatch(r"(\d+)([KMGT]?)B?", given.get("mem", "").upper())
    if amount is not None:
        unit = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40}[amount[2]]
        if 0 < int(amount[1]) * unit < LEAST_BYTES:
            yield Evidence(what="--mem", seen=given["mem"], expected="1G or more")


def _seconds(limit: str) -> int | None:
    """The seconds of a time limit of Slurm: ``30`` (minutes), ``1:30:00``, ``2-12``."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit)
    if match is None:
        return None
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] is not None or match[4] is not None:  # D-H:M:S, H:M:S
        return ((days * 24 + first) * 60 + second) * 60 + third
    return first * 60 + second  # M:S


TEST_ONLY = "sbatch --test-only"
INSTALL_SLURM = "apt-get install slurm-client, or run this on a login node"
NO_CONTROLLER = (
    "Unable to contact slurm controller",
    "Unable to establish controller machine",
    "Could not establish a configuration source",
    "Unable to process configuration file",
    "resolve_ctls_from_dns_srv",
    "error reading slurm.conf",
)


def submit_script(artefact: Artefact, expected: Expected, host: Host) -> Answer:
    """``sbatch --test-only``, and the job itself if it may be submitted."""
    path = str(real_path(artefact.path))
    if artefact.format == "slurm":
        yield header_check(artefact, expected)
    if host.which("sbatch") is None:
        yield not_installed(TEST_ONLY, "sbatch", INSTALL_SLURM)
        return
    consumer = _ask(("sbatch", "--version"), host).stdout.strip() or "slurm"
    done = _ask(("sbatch", "--test-only", path), host)
    if done.returncode is None:
        yield not_checked(
            TEST_ONLY, NO_ANSWER.format("sbatch"), "see whether sinfo answers", consumer
        )
        return
    lines = _lines_of(done)
    if lines:
        last = lines[-1]
    else:
        last = f"ended with {done.returncode}"
    printed = "\n".join(lines)
    if any(phrase in printed for phrase in NO_CONTROLLER):
        reason = f"no cluster answers: {lines[0]}"
        remedy = "run this on a login node of the cluster"
        yield not_checked(TEST_ONLY, reason, remedy, consumer)
        return
    refused = [Evidence(what="sbatch", seen=line) for line in lines or [last]]
    yield judged(TEST_ONLY, consumer, refused if done.returncode else (), last, wrong=last)
    if done.returncode:
        return
    yield from files_check(artefact, expected, host)
    yield from variables_of(artefact, expected)
    if not expected.run or any(missing_beside(artefact)):
        yield not_run(is_requested=not expected.run)
    elif not expected.submit:
        reason = "not submitted: a job uses nodes of the cluster"
        yield not_checked("launch", reason, f"cputune verify --submit {artefact.path}", consumer)
    else:
        python, missing = interpreter(artefact, host.environment(), host)
        yield from _run_batch(path, expected, consumer, python, host)
        yield from missing


def _run_batch(
    path: str, expected: Expected, consumer: str, python: str | None, host: Host
) -> Answer:
    """Submit the job, and end it if it has not ended by itself."""
    names: list[str] = []
    with WorkFolder() as work:
        output = work.path / "job.out"

        def begin(reporting: Mapping[str, str]) -> Sequence[RankCommand]:
            name = f"cputune-verify-{os.getpid()}-{len(names)}"
            names.append(name)
            return batch_job(
                ("sbatch", "--wait", f"--job-name={name}", f"--output={output}", path),
                name=name,
                nodes=expected.plan.nodes,
                reporting=reporting,
                environment=host.environment(),
            )

        try:
            yield from measured(
                begin,
                expected,
                consumer,
                interpreter=python,
                dealt_out=True,
                logs=[output],
            )
        finally:
            for name in names:
                _ask(("scancel", f"--name={name}"), host)
